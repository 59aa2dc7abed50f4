"""The simulator: one seed is one cluster with its clients, its weather and its faults, under virtual time (docs/internals/simulator.md).

    make sim SEED=7                     one run, with its trace
    make sim SEEDS=1000 FIRST_SEED=500  a range, on every core
    make mutants                        planted bugs, each of which must be caught

`run` plays a seed; `mix` draws it; `world` holds the processes; `clients` and `faults` are what acts, each a registry to add to; `history` is what
was seen, `checkers` judge it; `planted` are bugs that `mutants` hunts.
"""

from __future__ import annotations

from verification.simulation.checkers import CHECKERS
from verification.simulation.run import Outcome, run

__all__ = ["CHECKERS", "Outcome", "run"]
