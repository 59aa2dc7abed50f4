"""`python -m demo [--faults]`: exit code 0 only if every check held."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from types import FrameType

from demo.airline import YEAR_S, Options, run
from demo.directory import claimed
from demo.display import console_here
from demo.flights import FlightsMissing
from demo.processes import ChildFailed
from demo.watch import Stalled
from waltz_log.errors import WaltzError


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m demo", description="Real flights, real conflicts, and Delta tables that must come out exact.")
    parser.add_argument("--faults", action="store_true", help="kill a storage node, a server and a Spark driver in the middle")
    parser.add_argument("--secure", action="store_true", help="mutual TLS on every connection, Spark's included")
    parser.add_argument("--limit", type=int, default=None, metavar="N", help="only the first N flights of each airport")
    parser.add_argument("--year", type=float, default=YEAR_S, metavar="SECONDS", help="how long the year 2013 takes; 0: as short as it gets")
    parser.add_argument("--keep", action="store_true", help="serve the web console, and keep it and the cluster running until Ctrl-C")
    parser.add_argument(
        "--directory", type=Path, help="emptied at the start; holds tables, logs and the cluster's files (var/demo, or a free one beside it)"
    )
    arguments = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    console = console_here()
    try:
        chosen = (arguments.faults, arguments.limit, arguments.year, arguments.secure, arguments.keep)
        with claimed(arguments.directory and arguments.directory.resolve()) as directory:
            return 0 if run(Options(directory, *chosen), console) else 1
    except KeyboardInterrupt:
        console.print("stopped")
        return 130
    except (ChildFailed, FlightsMissing, Stalled, WaltzError) as error:
        console.print(f"the demo failed: {error}", style="red", markup=False, highlight=False)
        return 1


if __name__ == "__main__":
    sys.exit(main())
