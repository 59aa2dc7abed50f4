"""A table by key, filled from the same log as the chaos's own table, and what such a table cannot hold: an empty key in a partition column, and rows
that violate a constraint that a user added. Each of them must be a dead letter, exactly once, and nothing else may be missing.

What is expected comes from the log by a plain fold; the tables are read by deltalake.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from deltalake import DeltaTable

from tests.e2e.chaos_checker import marks_of
from waltz_log.client import SyncWaltzClient

__all__ = ["HEADER", "Entry", "KeyedTable", "data_of", "entry_of", "log_entries"]

HEADER = 1000
"""Of transactions that are entries. All others have lower ones."""

KEYS = 4
"""Of each log partition. The first one has the empty key too."""

EMPTY, TOO_LARGE = "empty key", "constraint"


class Entry(NamedTuple):
    partition: int
    transaction_id: int
    number: int
    key: str


def data_of(partition: int, number: int, rng: random.Random) -> bytes:
    key = "" if partition == 0 and rng.random() < 0.2 else f"{partition}-{rng.randrange(KEYS)}"
    return json.dumps({"n": number, "k": key}).encode()


def entry_of(partition: int, transaction_id: int, data: bytes) -> Entry:
    found = json.loads(data)
    return Entry(partition, transaction_id, found["n"], found["k"])


def log_entries(cluster: str) -> list[Entry]:
    found = []
    with SyncWaltzClient(cluster) as client:
        for partition in range(client.partitions):
            last = client.high_water_mark(partition)
            for batch in client.feed_batches(partition, after=-1) if last >= 0 else ():
                found += [entry_of(partition, each.transaction_id, each.data) for each in batch if each.header == HEADER]
                if batch[-1].transaction_id >= last:
                    break
    return found


class KeyedTable:
    def __init__(self, directory: Path, cluster: str, cluster_key: str) -> None:
        self._directory, self._cluster, self._key = directory, cluster, cluster_key
        self.table, self.letters = directory / "keyed", directory / "letters"
        self.limit: int | None = None
        """The largest number that the constraint allows."""

    @property
    def settings(self) -> dict[str, Any]:
        """Of its pipeline, as in a file."""
        target = {"table": str(self.table), "mode": "upsert", "keys": ["k"], "layout": {"partition_by": ["k"]}}
        output = {"target": target, "decode": {"format": "json", "columns": "n BIGINT, k STRING"}, "route": {"headers": [HEADER]}}
        return {
            "source": {"cluster": self._cluster, "maxTransactionsPerTrigger": "20000"},
            "outputs": [output],
            "dead_letters": {"table": str(self.letters)},
            "checkpoint": str(self._directory / "keyed-checkpoint"),
            "trigger": "available-now",
        }

    def file(self) -> Path:
        self._directory.mkdir(parents=True, exist_ok=True)
        place = self._directory / "keyed.yaml"
        place.write_text(json.dumps(self.settings))
        return place

    def constrain(self) -> None:
        """From now on no number may be larger than those in the table."""
        table = DeltaTable(str(self.table))
        self.limit = max(table.to_pyarrow_table(columns=["n"])["n"].to_pylist(), default=0)
        table.alter.add_constraint({"few": f"n <= {self.limit}"})

    def differences(self, entries: Iterable[Entry]) -> list[str]:
        """What is wrong with the table and its dead letters, by what they hold of the log."""
        marks = marks_of(self.table, self._key)
        newest, letters = dict[str, Entry](), Counter[tuple[int, int, str]]()
        for each in sorted(entries, key=lambda entry: entry.transaction_id):
            if each.transaction_id <= marks.get(each.partition, -1):
                if (kind := self._refused(each)) is not None:
                    letters[each.partition, each.transaction_id, kind] += 1
                else:
                    newest[each.key] = each
        found = DeltaTable(str(self.table)).to_pyarrow_table(columns=["partition", "transaction_id", "n", "k"]).to_pydict()
        held = Counter(zip(*found.values(), strict=True))
        written = DeltaTable(str(self.letters)).to_pyarrow_table(columns=["partition", "transaction_id", "reason"]).to_pydict()
        buried = Counter((p, at, _kind(reason)) for p, at, reason in zip(*written.values(), strict=True))
        return [*_compared("row", Counter(tuple(each) for each in newest.values()), held), *_compared("letter", letters, buried)]

    def _refused(self, entry: Entry) -> str | None:
        if not entry.key:
            return EMPTY
        return TOO_LARGE if self.limit is not None and entry.number > self.limit else None


def _kind(reason: str) -> str:
    if "partition column cannot hold" in reason:
        return EMPTY
    return TOO_LARGE if reason.startswith("violates CHECK few (n <= ") else reason


def _compared(what: str, expected: Counter[Any], found: Counter[Any]) -> Iterator[str]:
    for each in sorted({*expected, *found}, key=repr):
        if expected[each] != found[each]:
            yield f"{what} {each}: {found[each]} times, not {expected[each]}"
