"""`python -m benchmarks.kafka`: the same transactions into three Kafka brokers that sync each batch, in turns with the platform, on the same machine.

What Kafka is given: a topic of one partition with replication 3, `acks=all`, `flush.messages=1`, batches of 512 KiB with 10 ms to fill where the rate
is measured, its own defaults where one record is. It checks no locks and makes no transactions. Its client is its own performance tool, a process of
its own that must warm up each time, so its part of a round is long.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
from collections.abc import Callable, Coroutine, Mapping
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
from waltz_log.testing.local import LocalCluster

__all__ = ["main"]

_PROJECT = Path(__file__).resolve().parents[1]
JARS = _PROJECT / ".cache" / "kafka-jars"

WINDOW = 16_000
COUNT = 400_000
SINGLES = 1_000
SINGLES_PER_S = 100
"""Kafka's tool has no mode with one record in flight; at this rate hardly ever are there two."""
OFFERED_PER_S = 20_000
OFFERED = 200_000

TUNED = {"batch.size": 512 * 1024, "linger.ms": 10, "buffer.memory": 64 * 1024 * 1024}


@dataclass(frozen=True)
class Compared:
    """One figure, of each side in each round."""

    name: str
    told: Mapping[str, Any]
    platform: Callable[[WaltzClient], Coroutine[Any, Any, float]]
    kafka: Callable[[KafkaCluster], float]


async def _rate(client: WaltzClient) -> float:
    return (await pipelined(client, COUNT, window=WINDOW)).rate


async def _single_ms(client: WaltzClient) -> float:
    return percentile((await single(client, SINGLES)).latencies_ms, 0.5)


async def _p99_ms(client: WaltzClient) -> float:
    return percentile((await offered(client, OFFERED, rate=OFFERED_PER_S)).latencies_ms, 0.99)


COMPARED = (
    Compared(
        "kafka.append",
        {"unit": "txn/s", "in_flight": WINDOW},
        _rate,
        lambda kafka: kafka.produce(COUNT, record_bytes=DATA_BYTES, per_s=-1, settings=TUNED).rate,
    ),
    Compared(
        "kafka.single_p50",
        {"unit": "ms", "in_flight": 1, "records_per_s_of_kafka": SINGLES_PER_S},
        _single_ms,
        lambda kafka: kafka.produce(SINGLES, record_bytes=DATA_BYTES, per_s=SINGLES_PER_S, settings={}).p50_ms,
    ),
    Compared(
        "kafka.p99_at_20k",
        {"unit": "ms", "offered_per_s": OFFERED_PER_S},
        _p99_ms,
        lambda kafka: kafka.produce(OFFERED, record_bytes=DATA_BYTES, per_s=OFFERED_PER_S, settings=TUNED).p99_ms,
    ),
)


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
                    theirs = each.kafka(kafka)
                else:
                    theirs = each.kafka(kafka)
                    mine = asyncio.run(_of(platform, each))
                if number:
                    found[each.name].append((mine, theirs))
            paces.append(pace_ns())
    pace = {"pace_ns": round(median(paces))}
    return [in_turns(each.name, found[each.name], "kafka", {**conditions, **pace, **each.told}) for each in COMPARED]


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
