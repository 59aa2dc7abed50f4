"""JSON of the log into Delta: appended exactly once beside `from_json` into Delta's own sink, and merged by key beside a MERGE by hand over
`from_json`; in a driver of its own, with a log of its own.

The first half of the log has each key once, the other half changes drawn ones. A key stays in its partition.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.documents import FLIGHT, flight
from benchmarks.log import PARTITIONS
from benchmarks.measurement import Measurement
from benchmarks.setting import Workload
from benchmarks.spark import submit
from waltz_log.client import WaltzClient
from waltz_log.processes.local_cluster import LocalCluster

__all__ = ["run"]

MERGES = 3
"""Counted ones; one more comes before them, and compiles."""
TIMES = 2
"""How often each sink lands the log."""


def run(directory: Path, workload: Workload, conditions: Mapping[str, Any]) -> list[Measurement]:
    keys, batch = workload.log // 2, workload.log // 8
    rows = keys + (MERGES + 1) * batch
    with LocalCluster(directory / "json-log", partitions=PARTITIONS, storages=3, servers=2) as cluster:
        asyncio.run(_fill(cluster.cluster, keys, rows))
        options = (f"--keys={keys}", f"--changes={batch}", f"--merges={MERGES}", f"--columns={FLIGHT}", f"--batch={workload.batch}")
        answer = submit("json", cluster.cluster, directory, *options, script="json_session.py")
    append, merge = answer["append"], answer["merge"]
    for name, landed in append["rows"].items():
        if landed != TIMES * rows:
            raise RuntimeError(f"a sink landed another number of rows than were appended: sink={name} got={landed} wanted={TIMES * rows}")
    if append["differing"] or merge["differing"]:
        raise RuntimeError(f"the two ways came to other rows: append={append['differing']} merge={merge['differing']}")
    told = {**conditions, "spark": answer["spark"], "partitions": PARTITIONS, "columns": 14, "log": "warm"}
    found = []
    for name, way, peer in (
        ("append_json", append, "from_json into Delta's own streaming sink"),
        ("merge_json", merge, "a MERGE written by hand over from_json"),
    ):
        rates = {each: TIMES * rows / took_s if way is append else MERGES * batch / took_s for each, took_s in way["took_s"].items()}
        own = {"rows_per_batch": workload.batch, "rows": rows} if way is append else {"rows_per_batch": batch, "table_rows": keys}
        found.append(Measurement(f"delta.own_{name}", rates["own"], "rows/s", {**told, **own}))
        measured = Measurement(f"delta.{name}", rates["ours"], "rows/s", {**told, **own, "engine": "arrow"})
        found.append(measured.compared_with(rates["own"], f"{peer}, {rates['own']:,.0f} rows/s"))
    return found


async def _fill(cluster: str, keys: int, rows: int) -> None:
    async with WaltzClient.open(cluster) as client:
        for receipt in await asyncio.gather(*(client.append_bulk(p, _documents(p, keys, rows)) for p in range(PARTITIONS))):
            if receipt.committed != rows // PARTITIONS:
                raise RuntimeError(f"the log of the benchmark could not be filled: {receipt}")


def _documents(partition: int, keys: int, rows: int) -> Iterator[bytes]:
    rng, each = random.Random(partition), keys // PARTITIONS
    for n in range(rows // PARTITIONS):
        yield flight(n, (n if n < each else rng.randrange(each)) * PARTITIONS + partition)
