"""`make strangers`: 10,000 connections of strangers to every port of a cluster over mutual TLS. Ends with 1 if a client's appends become slower than
twice the p99 without strangers, if one fails, or if a node's memory grows without a bound."""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import asdict

from verification.strangers.measuring import GROWTH_BYTES_MAX, SLOWER_MAX, measure
from waltz_log.processes.local_cluster import LocalCluster


def main() -> int:
    parser = argparse.ArgumentParser(prog="make strangers", description="connections of strangers to every port of a cluster")
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--plain", action="store_true", help="without TLS")
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as directory,
        LocalCluster(directory, partitions=4, storages=3, servers=1, secure=not given.plain) as cluster,
    ):
        found = measure(cluster, given.connections, given.seconds)
    for name, value in asdict(found).items():
        print(f"{name} {value}")
    print(f"p99 {found.slower:.2f} times as long (at most {SLOWER_MAX}), memory +{found.growth_bytes >> 20} MiB (at most {GROWTH_BYTES_MAX >> 20})")
    return 0 if found.passed else 1


if __name__ == "__main__":
    sys.exit(main())
