"""`python -m benchmarks.kafka`: the same transactions into three Kafka brokers that sync each batch, in turns with the platform, on the same machine.

Both sides get the same load in each figure: as many transactions, of the same size, either as fast as they go with about 16,000 in flight, or one due
every so often whatever became of those before (an open loop). Every setting of Kafka's producer that matters is given and recorded, none is left to
a default (`linger.ms` is 0 in Kafka 3 and 5 in Kafka 4).

What stays different, and is recorded with each figure:

- Durability. The platform answers when two of three replicas have the transaction on disk. Kafka with `acks=all` answers when every replica in
  sync has it, all three while none lags; `flush.messages=1` makes each of them sync, and `min.insync.replicas=2` only says when to refuse.
- Kafka checks no locks and makes no transactions.
- Kafka's tool counts a latency from the call that sends the record. The platform's load counts from when the transaction was due, sent or not.
- Kafka's client is its own performance tool, a process of its own that must warm up each time, so its part of a round is long.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from benchmarks.kafka_cluster import KafkaCluster, kafka_cluster
from benchmarks.load import offered, pipelined, prepare, single
from benchmarks.measurement import Measurement, in_turns, percentile, table, write
from benchmarks.pace import pace_ns
from benchmarks.setting import DATA_BYTES, machine_conditions
from waltz_log.client import WaltzClient
from waltz_log.errors import WaltzError
from waltz_log.processes.local_cluster import LocalCluster

__all__ = ["main"]

_PROJECT = Path(__file__).resolve().parents[1]
JARS = _PROJECT / ".cache" / "kafka-jars"

WINDOW = 16_000
COUNT = 400_000
SINGLES = 1_000
SINGLES_PER_S = 100
"""Kafka's tool has no mode with one record in flight; at this rate hardly ever are there two, on either side."""
OFFERED_PER_S = 20_000
OFFERED = 200_000

BATCH_BYTES = 512 * 1024
BUFFER_BYTES = 4 * 1024 * 1024
"""Of Kafka's client: about `WINDOW` records of 200 bytes with what Kafka adds to each."""

DURABILITY = {"platform_durability": "on disk at 2 of 3 replicas", "kafka_durability": "on disk at all in-sync replicas, 3 of 3 while none lags"}


@dataclass(frozen=True)
class Compared:
    """One figure, of each side in each round, from one description of the load. `per_s`: so many are due a second; -1: as fast as it goes.
    `quantile`: of the latencies in milliseconds; None: the figure is the rate."""

    name: str
    count: int
    per_s: int
    quantile: float | None
    linger_ms: int

    @property
    def kafka_settings(self) -> Mapping[str, str | int]:
        return {"acks": "all", "linger.ms": self.linger_ms, "batch.size": BATCH_BYTES, "buffer.memory": BUFFER_BYTES}

    @property
    def conditions(self) -> Mapping[str, Any]:
        load = {"in_flight": WINDOW} if self.per_s < 0 else {"offered_per_s": self.per_s}
        return {"unit": "txn/s" if self.quantile is None else "ms", "count": self.count, **load, "kafka": dict(self.kafka_settings), **DURABILITY}

    async def platform(self, client: WaltzClient) -> float:
        if self.quantile is None:
            return (await pipelined(client, self.count, window=WINDOW)).rate
        return percentile((await offered(client, self.count, rate=self.per_s)).latencies_ms, self.quantile)

    def of_kafka(self, kafka: KafkaCluster) -> float:
        found = kafka.produce(self.count, record_bytes=DATA_BYTES, per_s=self.per_s, settings=self.kafka_settings)
        return found.rate if self.quantile is None else found.p50_ms if self.quantile == 0.5 else found.p99_ms


COMPARED = (
    Compared("kafka.append", COUNT, -1, None, linger_ms=10),
    Compared("kafka.single_p50", SINGLES, SINGLES_PER_S, 0.5, linger_ms=0),
    Compared("kafka.p99_at_20k", OFFERED, OFFERED_PER_S, 0.99, linger_ms=2),
)
"""`linger_ms` of the last one is that of the platform's client. The first one's fills Kafka's batches."""


def measure(directory: Path, rounds: int, jars: Path = JARS) -> list[Measurement]:
    conditions = machine_conditions(quick=False)
    prepare([1, WINDOW, OFFERED])
    found: dict[str, list[tuple[float, float]]] = {each.name: [] for each in COMPARED}
    paces = []
    with LocalCluster(directory / "platform", partitions=1, storages=3, servers=1) as platform, kafka_cluster(jars, directory / "kafka") as kafka:
        kafka.create_topic(partitions=1)
        for number in range(rounds + 1):  # the first warms up
            for each in COMPARED:
                if number % 2:
                    mine = asyncio.run(_of(platform, each))
                    theirs = each.of_kafka(kafka)
                else:
                    theirs = each.of_kafka(kafka)
                    mine = asyncio.run(_of(platform, each))
                if number:
                    found[each.name].append((mine, theirs))
            paces.append(pace_ns())
    pace = {"pace_ns": round(median(paces))}
    return [in_turns(each.name, found[each.name], "kafka", {**conditions, **pace, **each.conditions}) for each in COMPARED]


async def _of(platform: LocalCluster, compared: Compared) -> float:
    async with WaltzClient.open(platform.cluster) as client:
        await single(client, 50)
        return await compared.platform(client)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kafka", description="The platform and Kafka in turns on this machine.")
    parser.add_argument("--rounds", type=int, default=6)
    arguments = parser.parse_args()
    directory = _PROJECT / "var" / "bench-kafka"
    console = Console() if sys.stdout.isatty() else Console(width=200)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    try:
        found = measure(directory, arguments.rounds)
    except KeyboardInterrupt:
        return 130
    except (WaltzError, RuntimeError) as error:
        console.print(f"the benchmark failed: {error}", style="red", markup=False, highlight=False)
        return 1
    finally:
        with suppress(OSError):
            shutil.rmtree(directory)
    write(_PROJECT / "benchmarks" / "latest.json", found)
    console.print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
