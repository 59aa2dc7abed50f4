"""Clocks that drift: the date and the timers of a process run faster or slower than those of the others."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final

from verification.simulation.faults import fault

if TYPE_CHECKING:
    from verification.simulation.world import World

__all__ = ["RATES", "drift_clock"]

RATES: Final = (0.8, 0.98, 1.02, 1.25)
"""Quartz is off by 0.01 %; virtual machines that were moved or starved have been seen to be off by several percent."""


@fault("clock-drift", chance=0.3)
async def drift_clock(world: World, rng: Random) -> None:
    """The timers of one process drift as long as it lives. The date of its node drifts at another rate, permanently."""
    processes = {**world.servers, **world.storages, **world.clients}
    name = rng.choice(sorted(processes))
    rate, date_rate = rng.choice(RATES), rng.choice(RATES)
    processes[name].process.drift(rate)
    if name in world.clocks:
        world.clocks[name].drift(date_rate)
    world.trace.add(name, f"its timers run at {rate:g}, its date at {date_rate:g}")
