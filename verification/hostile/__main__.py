"""`make hostile`: an honest client appends a million transactions, while a client with every right except the honest one's attacks the cluster. Ends
with 1 if a receipt is wrong, an attack achieves anything, an append fails, p99 is more than twice as long, or a node's memory grows."""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import asdict

from verification.hostile.run import GROWTH_BYTES_MAX, SLOWER_MAX, attack, grant
from waltz_log.processes.local_cluster import LocalCluster


def main() -> int:
    parser = argparse.ArgumentParser(prog="make hostile", description="an honest client beside a hostile one")
    parser.add_argument("--appends", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=660.0, help="the first tenth without the hostile client")
    parser.add_argument("--workers", type=int, default=1, help="processes of each log server")
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as directory,
        LocalCluster(directory, partitions=4, storages=3, servers=1, secure=True, http=True, server_settings={"workers": given.workers}) as cluster,
    ):
        grant(cluster)
        found = attack(cluster, given.appends, given.seconds, given.seconds / 11)
    for name, value in asdict(found).items():
        print(f"{name} {value}")
    print(f"p99 {found.slower:.2f} times as long (at most {SLOWER_MAX}), memory +{found.growth_bytes >> 20} MiB (at most {GROWTH_BYTES_MAX >> 20})")
    return 0 if not found.faults and found.slower <= SLOWER_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
