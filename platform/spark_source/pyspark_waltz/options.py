"""The options of `format("waltz")`: which there are, what they mean, and the refusal of everything else.

| option | default | stream, batch | meaning |
|---|---|---|---|
| `cluster` | required | both | address of the cluster, `host:port[,host:port]/root` |
| `partitions` | all | both | log partitions to read, as `0-3,7` |
| `startingTransactionIds` | `earliest` | both | `earliest`, `latest`, or JSON `{"0": 17, "1": -2, "2": -1}`; see below |
| `endingTransactionIds` | `latest` | batch | `latest`, or JSON `{"0": 42, "1": -1}`: the first id *not* read |
| `maxTransactionsPerTrigger` | no limit | stream | most transactions of one micro-batch, shared in proportion to the backlogs |
| `failOnDataLoss` | `true` | both | fail where transactions were trimmed before they were read; `false` skips them |
| `minPartitions` | none | both | cut ranges so that at least so many tasks run, where there are as many rows |
| `maxRecordsPerPartition` | `250000` | both | most rows of one task; longer ranges are cut into even pieces |
| `fetchTimeoutMs` | `60000` | both | how long to look for a replica (executors) or an owner (driver) that answers before giving up |

In JSON -2 is the earliest and -1 the latest; a partition not named starts at the earliest and ends at the latest. A stream looks at its start once,
when its checkpoint is new. A limit lets every partition with a backlog get on, in turns where it is below their number.

Names are case-insensitive, as Spark passes them in lower case. Pure: nothing is connected here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from waltz_log.errors import InvalidSetting

__all__ = ["EARLIEST", "LATEST", "Positions", "SourceOptions"]

EARLIEST = -2
LATEST = -1

_NAMES = (
    "cluster",
    "partitions",
    "startingTransactionIds",
    "endingTransactionIds",
    "maxTransactionsPerTrigger",
    "failOnDataLoss",
    "minPartitions",
    "maxRecordsPerPartition",
    "fetchTimeoutMs",
)
_KNOWN = {name.lower(): name for name in _NAMES}
_STREAM_ONLY = ("maxTransactionsPerTrigger",)
_BATCH_ONLY = ("endingTransactionIds",)
_FROM_SPARK = frozenset({"checkpointlocation", "queryname", "outputmode"})
"""Spark's own, which reach a source when a caller hands one dict of options to reader and writer alike. They mean nothing here."""

PARTITIONS_MAX = 1 << 20
"""Bounds what `partitions` may expand to; far above any cluster, far below what hurts the driver."""

MAX_RECORDS_PER_PARTITION = 250_000
"""Half a second of one core: long enough that starting a task costs little, short enough that one log partition keeps several cores busy."""

FETCH_TIMEOUT_MS = 60_000
"""Covers a change of owner and a restart of a storage node, with room."""


@dataclass(frozen=True, slots=True)
class Positions:
    """Where to start or end, before the log was asked: a transaction id, `EARLIEST` or `LATEST` for each partition."""

    default: int
    given: Mapping[int, int] = field(default_factory=dict)

    def of(self, partition: int) -> int:
        return self.given.get(partition, self.default)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    cluster: str
    partitions: tuple[int, ...] | None = None
    starting: Positions = Positions(EARLIEST)
    ending: Positions = Positions(LATEST)
    max_transactions_per_trigger: int | None = None
    fail_on_data_loss: bool = True
    min_partitions: int | None = None
    max_records_per_partition: int = MAX_RECORDS_PER_PARTITION
    fetch_timeout_ms: int = FETCH_TIMEOUT_MS
    named: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Raises `InvalidSetting` for the first option that is unknown, missing or unusable."""
        values: dict[str, str] = {}
        for key, value in sorted(options.items()):
            lower = key.lower()
            if lower in _KNOWN:
                values[_KNOWN[lower]] = value
            elif lower == "path":
                raise InvalidSetting(name="path", reason="the source has no path; give the address of the cluster as an option", nearest="cluster")
            elif lower not in _FROM_SPARK:
                raise InvalidSetting.unknown(key, _NAMES, what="option of the source")
        if not values.get("cluster", "").strip():
            raise InvalidSetting(name="cluster", reason="is required: the address of the cluster, host:port/root", nearest=None)
        partitions = parse_partitions(values["partitions"]) if "partitions" in values else None
        starting = parse_positions("startingTransactionIds", values.get("startingTransactionIds", "earliest"), default=EARLIEST)
        ending = parse_positions("endingTransactionIds", values.get("endingTransactionIds", "latest"), default=LATEST)
        for name, positions in (("startingTransactionIds", starting), ("endingTransactionIds", ending)):
            outside = sorted(set(positions.given) - set(partitions)) if partitions is not None else []
            if outside:
                raise InvalidSetting(name=name, reason=f"names partition {outside[0]}, which option partitions leaves out", nearest=None)
        return cls(
            cluster=values["cluster"].strip(),
            partitions=partitions,
            starting=starting,
            ending=ending,
            max_transactions_per_trigger=_count(values, "maxTransactionsPerTrigger"),
            fail_on_data_loss=_truth(values, "failOnDataLoss", default=True),
            min_partitions=_count(values, "minPartitions"),
            max_records_per_partition=_count(values, "maxRecordsPerPartition") or MAX_RECORDS_PER_PARTITION,
            fetch_timeout_ms=_count(values, "fetchTimeoutMs") or FETCH_TIMEOUT_MS,
            named=frozenset(values),
        )

    def check_use(self, use: Literal["stream", "batch"]) -> None:
        """Refuses an option that would do nothing in this use."""
        for name in _BATCH_ONLY if use == "stream" else _STREAM_ONLY:
            if name in self.named:
                other = "batch" if use == "stream" else "stream"
                raise InvalidSetting(name=name, reason=f"is for {other} reads only", nearest=None)


def parse_partitions(text: str) -> tuple[int, ...]:
    """`0-3,7` as (0, 1, 2, 3, 7): sorted, each once."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.isdecimal() and (not dash or last.isdecimal())):
            raise InvalidSetting(name="partitions", reason=f"wants numbers and ranges as in 0-3,7, got {text!r}", nearest=None)
        low, high = int(first), int(last or first)
        if high < low or high >= PARTITIONS_MAX:
            raise InvalidSetting(name="partitions", reason=f"range {part.strip()} is empty or too far", nearest=None)
        found.update(range(low, high + 1))
    return tuple(sorted(found))


def parse_positions(name: str, text: str, *, default: int) -> Positions:
    """A word or JSON. An end may not be `earliest`: it would read nothing."""
    ending = default == LATEST
    word = text.strip().lower()
    if word == "latest":
        return Positions(LATEST)
    if word == "earliest" and not ending:
        return Positions(EARLIEST)
    form = 'latest or JSON such as {"0": 42, "1": -1}' if ending else 'earliest, latest or JSON such as {"0": 17, "1": -2}'
    wrong = InvalidSetting(name=name, reason=f"wants {form}, got {text!r}", nearest=None)
    try:
        found = json.loads(text)
    except ValueError:
        raise wrong from None
    if not isinstance(found, dict):
        raise wrong
    given: dict[int, int] = {}
    for key, value in found.items():
        if not key.isdecimal() or isinstance(value, bool) or not isinstance(value, int) or value < (LATEST if ending else EARLIEST):
            raise wrong
        given[int(key)] = value
    return Positions(default, given)


def _count(values: Mapping[str, str], name: str) -> int | None:
    if name not in values:
        return None
    text = values[name].strip()
    if not text.isdecimal() or int(text) < 1:
        raise InvalidSetting(name=name, reason=f"wants a whole number above 0, got {values[name]!r}", nearest=None)
    return int(text)


def _truth(values: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = values.get(name, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise InvalidSetting(name=name, reason=f"wants true or false, got {values[name]!r}", nearest=None)
    return text == "true"
