"""`make alerts`. Ends with 1 if an alert is late or wrong."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from verification.alerts.faults import ALERT_TIMEOUT_S, Pace, run
from waltz_log.errors import WaltzError


def main() -> int:
    parser = argparse.ArgumentParser(prog="make alerts", description="plants faults in a real cluster, and waits for the alerts of a real Prometheus")
    parser.add_argument("--quiet", type=float, default=Pace().quiet_s, help="seconds in which nothing may fire")
    parser.add_argument("--factor", type=float, default=1.0, help="alerts wait so many times less than in conf/monitoring")
    parser.add_argument("--interval", type=float, default=Pace().interval_s, help="seconds between scrapes")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        try:
            report = run(Path(directory), Pace(given.interval, given.factor, given.quiet), lambda line: print(line, flush=True))
        except WaltzError as error:
            print(f"alerts: {error}", file=sys.stderr)
            return 1
    for problem in report.problems:
        print(f"problem: {problem}", flush=True)
    slowest = max(report.alerted.values(), default=0.0)
    print(f"{len(report.alerted)} alerts, the slowest after {slowest:g} s of {ALERT_TIMEOUT_S:g}, {len(report.problems)} problems", flush=True)
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
