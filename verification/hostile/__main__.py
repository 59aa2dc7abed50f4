"""`make hostile`: an honest client appends a million transactions, while a client with every right except the honest one's attacks the cluster for
ten minutes, with pauses. Ends with 1 if a receipt is wrong, a server permits what it must refuse, an append or a probe fails, p99 is more than
twice as long as in the pauses, a node's memory grows, or an attack did nothing."""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import asdict

from verification.hostile.probes import ProbedCluster
from verification.hostile.run import SLOWER_MAX, attack, grant


def main() -> int:
    parser = argparse.ArgumentParser(prog="make hostile", description="an honest client beside a hostile one")
    parser.add_argument("--appends", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=780.0, help="the first thirteenth, and pauses, without the hostile client")
    parser.add_argument("--workers", type=int, default=1, help="processes of each log server")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, ProbedCluster(directory, given.workers) as cluster:
        grant(cluster)
        found = attack(cluster, given.appends, given.seconds, given.seconds / 13)
    for name, value in asdict(found).items():
        print(f"{name} {value}")
    for line in (*found.summary, *(f"fault: {each}" for each in found.faults)):
        print(line)
    return 0 if not found.faults and found.slower <= SLOWER_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
