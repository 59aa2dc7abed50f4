"""`python -m verification.simulation`: one seed with its trace, or a range of seeds. Ends with 1 where anything is wrong."""

from __future__ import annotations

import argparse
import sys

from verification.simulation.ranges import SHOWN_MAX, Range, run_range
from verification.simulation.run import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="make sim", description="runs whole clusters under faults, in virtual time")
    parser.add_argument("--seed", type=int, help="one run, with its trace")
    parser.add_argument("--seeds", type=int, default=100, help="how many runs")
    parser.add_argument("--first", type=int, default=0, help="the first seed of the range")
    parser.add_argument("--jobs", type=int, help="processes at once; one a core by default")
    given = parser.parse_args()
    if given.seed is not None:
        outcome = run(given.seed, print)
        print(f"{outcome.command}: digest {outcome.digest}, {outcome.committed} of {outcome.attempts} appends committed, {len(outcome.wrong)} wrong")
        return 1 if outcome.wrong else 0
    shown = 0

    def reported(part: Range) -> None:
        nonlocal shown
        for failed in part.failed:
            shown += 1
            print(failed if shown <= SHOWN_MAX else f"replay: make sim SEED={failed.seed}", flush=True)

    whole = run_range(range(given.first, given.first + given.seeds), given.jobs, reported)
    print(whole)
    return 1 if whole.failed else 0


if __name__ == "__main__":
    sys.exit(main())
