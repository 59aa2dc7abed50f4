"""`make bench-kafka [ONLY=group] [ROUNDS=5]`: the same load on three Kafka brokers that sync each batch, in turns with the platform.

The figures are `kafka.*` in `benchmarks/latest.json`: the platform's value, its ratio to the best peer, the spread of both. `kafka_cases` says what
is compared.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from statistics import median

from benchmarks.load import prepare
from benchmarks.measurement import Measurement
from benchmarks.pace import pace_ns
from benchmarks.peers.kafka_cases import GROUPS, OFFERED_PER_S, PARTITIONS, UNSYNCED, WINDOW, Sides, Work, cases, topic
from benchmarks.peers.kafka_clients import ConfluentLoads, ProducerSettings, java_tool
from benchmarks.peers.kafka_cluster import kafka_cluster
from benchmarks.peers.rounds import compared
from benchmarks.running import PROJECT, run_measurements
from benchmarks.setting import machine_conditions
from waltz_log.processes.local_cluster import LocalCluster

__all__ = ["main", "measure"]

DISK_BYTES = 35 * 10**9
"""What the largest group writes: three replicas on both sides."""

JARS = PROJECT / ".cache" / "kafka-jars"
FULL = Work(throughput=400_000, singles=500, offered_s=3.0)
QUICK = Work(throughput=20_000, singles=20, offered_s=0.3, sizes_share=0.05)


def measure(directory: Path, groups: Sequence[str], rounds: int, work: Work, jars: Path = JARS, *, quick: bool = False) -> list[Measurement]:
    """Each group has clusters of its own: no side deletes what it has. Raises `RuntimeError` if the disk has less free space than a group needs."""
    free = shutil.disk_usage(directory).free
    if not quick and free < DISK_BYTES:
        raise RuntimeError(f"the disk has {free / 1e9:.0f} GB free, and a group of measurements writes up to {DISK_BYTES / 1e9:.0f} GB: {directory}")
    prepare([1, WINDOW, max(OFFERED_PER_S)])
    return [each for group in groups for each in _measure_group(directory / group, group, rounds, work, jars, quick)]


def _measure_group(directory: Path, group: str, rounds: int, work: Work, jars: Path, quick: bool) -> list[Measurement]:
    partitions = sorted({1, PARTITIONS[group], *((4,) if group == "sizes" else ())})
    directory.mkdir()
    try:
        with ExitStack() as stack:
            platform = stack.enter_context(LocalCluster(directory / "platform", partitions=max(partitions), storages=3, servers=1))
            kafka = stack.enter_context(kafka_cluster(jars, directory / "kafka"))
            for number in partitions:
                kafka.create_topic(topic(number), partitions=number)
            kafka.create_topic(UNSYNCED, partitions=1, synced=False)

            @cache
            def confluent(name: str, settings: ProducerSettings) -> ConfluentLoads:
                return ConfluentLoads.connect(kafka.addresses, name, settings)

            sides = Sides(platform.cluster, confluent, stack.enter_context(java_tool(jars, kafka)), kafka.suspended)
            pace = pace_ns()
            found = compared(cases(group, sides, work), rounds, machine_conditions(quick=quick))
            pace = round(median([pace, pace_ns()]))
            return [_with_pace(each, pace) for each in found]
    finally:
        shutil.rmtree(directory)


def _with_pace(measurement: Measurement, pace: int) -> Measurement:
    own = {**measurement.conditions, "pace_ns": pace}
    return Measurement(measurement.name, measurement.value, measurement.unit, own, measurement.ratio, measurement.ratio_to)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.kafka", description="The platform and Kafka in turns on this machine.")
    parser.add_argument("--rounds", type=int, default=5, help="that count, after three that warm up")
    parser.add_argument("--only", choices=GROUPS, help="one group of figures")
    parser.add_argument("--quick", action="store_true", help="a twentieth of the work: shows that everything runs, the figures mean nothing")
    arguments = parser.parse_args()
    groups = GROUPS if arguments.only is None else (arguments.only,)
    work = QUICK if arguments.quick else FULL
    found = run_measurements("bench-kafka", lambda directory: measure(directory, groups, arguments.rounds, work, quick=arguments.quick))
    return found if isinstance(found, int) else 0


if __name__ == "__main__":
    sys.exit(main())
