"""A log of legs of aircraft, some of which do not decode, and what a pipeline must make of it: all of them, the newest and the versions of each
aircraft, and dead letters."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from verification.lake.log_table import held_rows
from waltz_delta import high_water_marks
from waltz_log.client import SyncWaltzClient

__all__ = ["LegsLog", "pipeline_text"]

NAMES = ("all", "newest", "versions")
BAD_EVERY = 13
"""Every so manieth transaction does not decode."""

PIPELINE = """\
name: legs
source: {{cluster: "{cluster}", maxTransactionsPerTrigger: 60}}
checkpoint: {checkpoint}
trigger: available-now
restart: {{attempts_max: {restarts}, pause_s: 0.2}}
outputs:
  - decode: &legs {{format: json, columns: "tail STRING, leg INT"}}
    target: {{table: "{place}/all", engine: arrow, storage: &store {storage}}}
  - decode: *legs
    target: {{table: "{place}/newest", engine: arrow, storage: *store, mode: upsert, keys: [tail]}}
  - decode: *legs
    target: {{table: "{place}/versions", engine: arrow, storage: *store, mode: history, keys: [tail]}}
dead_letters: {{table: "{place}/dead", engine: arrow, storage: *store}}
"""


def pipeline_text(cluster: str, place: str, checkpoint: Path, storage: Mapping[str, str], restarts: int = 1) -> str:
    return PIPELINE.format(cluster=cluster, place=place, checkpoint=checkpoint, storage=json.dumps(dict(storage)), restarts=restarts)


class Leg(NamedTuple):
    partition: int
    transaction_id: int
    tail: str
    leg: int | None


class LegsLog:
    """What was appended."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._legs: list[Leg] = []

    def append(self, count: int, aircraft: int = 6) -> None:
        with SyncWaltzClient(self._cluster) as client:
            for _ in range(count):
                at = len(self._legs)
                tail, leg = f"N{at % aircraft}", None if at % BAD_EVERY == 5 else at
                receipt = client.append(at % aircraft % 2, json.dumps({"tail": tail, "leg": "none" if leg is None else leg}).encode())
                self._legs.append(Leg(receipt.partition, receipt.transaction_id, tail, leg))

    def differences(self, place: str, storage: Mapping[str, str]) -> list[str]:
        """What of the tables differs from the log; nothing if all of it is there once."""
        good, bad = [leg for leg in self._legs if leg.leg is not None], [leg for leg in self._legs if leg.leg is None]
        by_tail: dict[str, list[Leg]] = {}
        for leg in good:
            by_tail.setdefault(leg.tail, []).append(leg)
        versions = [
            (leg.tail, leg.transaction_id, after.transaction_id if after else None, after is None)
            for legs in by_tail.values()
            for leg, after in zip(legs, [*legs[1:], None], strict=True)
        ]
        targets = [f"{place}/{name}" for name in NAMES]
        dead = [(target, leg.partition, leg.transaction_id) for target in targets for leg in bad]
        wanted: dict[str, tuple[Sequence[str], Sequence[tuple[Any, ...]]]] = {
            "all": (("partition", "transaction_id", "tail", "leg"), good),
            "newest": (("partition", "transaction_id", "tail", "leg"), [legs[-1] for legs in by_tail.values()]),
            "versions": (("tail", "valid_from", "valid_to", "is_current"), versions),
            "dead": (("target", "partition", "transaction_id"), dead),
        }
        marks = {partition: max(leg.transaction_id for leg in self._legs if leg.partition == partition) for partition in range(2)}
        found = list[str]()
        for name, (columns, rows) in wanted.items():
            table = f"{place.replace('s3a:', 's3:')}/{name}"
            options = dict(storage) or None
            held = held_rows(table, storage).select(list(columns)).to_pylist()
            there = sorted((tuple(row[column] for column in columns) for row in held), key=repr)
            if there != sorted(map(tuple, rows), key=repr):
                found.append(f"{name}: {len(there)} rows instead of {len(rows)}: {there}"[:2000])
            if name != "dead" and high_water_marks(table, storage_options=options) != marks:
                found.append(f"{name}: the marks are not {marks}")
        return found
