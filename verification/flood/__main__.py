"""`make flood`: three principals without rights call for ten minutes. Ends with 1 if a trace of an earlier denied call is gone."""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from verification.flood.run import audited, flood
from waltz_log.processes.local_cluster import LocalCluster


def main() -> int:
    parser = argparse.ArgumentParser(prog="make flood", description="a flood of denied calls, and the audit trail of the calls before it")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--rate", type=float, default=50.0, help="calls in a second, of each of the three principals")
    parser.add_argument("--workers", type=int, default=1, help="processes of each node")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        audit = Path(directory)
        settings = audited(audit, given.workers)
        with LocalCluster(audit / "cluster", partitions=4, storages=1, servers=1, secure=True, **settings) as cluster:
            found = flood(cluster, audit, given.seconds, given.rate)
    for name, value in asdict(found).items():
        print(f"{name} {value}")
    for fault in found.faults:
        print(f"fault: {fault}")
    return 1 if found.faults else 0


if __name__ == "__main__":
    sys.exit(main())
