"""`python -m verification.simulation`: one seed with its trace, or a range of seeds. Ends with 1 where anything is wrong."""

from __future__ import annotations

import argparse
import sys
from random import Random
from typing import Final

from verification.simulation.mix import ACCESS_IN, BATCHES_IN, CONTEXTS_FROM, CUT_OFF_IN
from verification.simulation.ranges import SHOWN_MAX, Range, run_range
from verification.simulation.run import run

KINDS: Final = (range(10_000, 100_000), range(100_000, CONTEXTS_FROM), range(CONTEXTS_FROM, BATCHES_IN.start), BATCHES_IN, ACCESS_IN, CUT_OFF_IN)
"""The seeds of each kind of load (`mix`), without those that the tests run."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="make sim", description="runs whole clusters under faults, in virtual time")
    parser.add_argument("--seed", type=int, help="one run, with its trace")
    parser.add_argument("--seeds", type=int, default=100, help="how many runs")
    parser.add_argument("--first", type=int, default=0, help="the first seed of the range")
    parser.add_argument("--new", action="store_true", help="seeds that probably no run has tried, some of each kind of load, instead of a range")
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

    failed = False
    for seeds in _new(given.seeds, Random()) if given.new else [range(given.first, given.first + given.seeds)]:
        if given.new:
            print(f"again: make sim FIRST_SEED={seeds.start} SEEDS={len(seeds)}", flush=True)
        whole = run_range(seeds, given.jobs, reported)
        failed = failed or bool(whole.failed)
        print(whole, flush=True)
    return 1 if failed else 0


def _new(count: int, rng: Random) -> list[range]:
    """`count` seeds, about as many of each kind."""
    each = -(-count // len(KINDS))
    return [range(first, first + each) for first in (rng.randrange(kind.start, kind.stop - each) for kind in KINDS)]


if __name__ == "__main__":
    sys.exit(main())
