"""Runs the platform and its peers in turns: rounds that warm up, rounds that count, and the ratio of the platform to its best peer. Pure except for
the calls that it gets. A peer whose settings cannot sustain the load at all (`HOPELESS`) runs in the warm-up rounds only; its last figures are among
the conditions. Of the others, the one with the best median counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.measurement import Measurement

__all__ = ["WARM_ROUNDS", "Case", "Rounds", "compared"]

WARM_ROUNDS = 3
HOPELESS = 20.0
"""A peer that is worse than the best one by this factor in the last warm-up round does not run again."""

Run = Callable[[], Sequence[float]]
"""One value for each figure of the case."""

PLATFORM = "platform"


@dataclass(frozen=True)
class Case:
    """The figures of one run of the platform and of each peer, by name. `lower`: lower is better."""

    figures: Sequence[str]
    unit: str
    platform: Run
    peers: Mapping[str, Run]
    conditions: Mapping[str, Any]
    lower: bool = False


class Rounds:
    """The figures of each side of a case in the counted rounds. `dropped`: the figures of hopeless peers in the last warm-up round."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.found: dict[str, list[Sequence[float]]] = {name: [] for name in (PLATFORM, *case.peers)}
        self.dropped: dict[str, Sequence[float]] = {}

    def run(self, number: int) -> None:
        """Sides change their order from round to round. The first `WARM_ROUNDS` warm up."""
        sides = [(PLATFORM, self.case.platform), *((name, run) for name, run in self.case.peers.items() if name not in self.dropped)]
        made = {name: run() for name, run in (sides if number % 2 else sides[::-1])}
        if number == WARM_ROUNDS - 1:
            self._drop({name: values for name, values in made.items() if name != PLATFORM})
        elif number >= WARM_ROUNDS:
            for name, values in made.items():
                self.found[name].append(values)

    def _drop(self, made: Mapping[str, Sequence[float]]) -> None:
        """By the last figure of each."""
        best = (min if self.case.lower else max)(values[-1] for values in made.values())
        for name, values in made.items():
            if (values[-1] / best if self.case.lower else best / values[-1]) > HOPELESS:
                self.dropped[name] = values

    def measurements(self, conditions: Mapping[str, Any]) -> list[Measurement]:
        return [self._measurement(figure, place, conditions) for place, figure in enumerate(self.case.figures)]

    def _measurement(self, figure: str, place: int, conditions: Mapping[str, Any]) -> Measurement:
        by_side = {name: [each[place] for each in values] for name, values in self.found.items() if values}
        mine = by_side.pop(PLATFORM)
        best = (min if self.case.lower else max)(by_side, key=lambda name: median(by_side[name]))
        ratios = _ratios(mine, by_side[best])
        own: dict[str, Any] = {
            "rounds": len(ratios),
            "warm_rounds": WARM_ROUNDS,
            "platform": _spread(mine),
            "ratios": f"{min(ratios):.2f} to {max(ratios):.2f}",
            "peers": {name: f"{_spread(values)}, ratio {median(_ratios(mine, values)):.2f}" for name, values in by_side.items()},
        }
        if self.dropped:
            own["could_not_hold"] = {name: _short(values[place]) for name, values in self.dropped.items()}
        what = f"{best}, {_short(median(by_side[best]))} {self.case.unit}"
        return Measurement(figure, median(mine), self.case.unit, {**conditions, **self.case.conditions, **own}, median(ratios), what)


def compared(cases: Sequence[Case], rounds: int, conditions: Mapping[str, Any]) -> list[Measurement]:
    """Every case in each of `WARM_ROUNDS + rounds` rounds, so that other load on the machine affects all of them."""
    found = [Rounds(case) for case in cases]
    for number in range(WARM_ROUNDS + rounds):
        for each in found:
            each.run(number)
    return [measurement for each in found for measurement in each.measurements(conditions)]


def _ratios(mine: Sequence[float], theirs: Sequence[float]) -> list[float]:
    return [own / their for own, their in zip(mine, theirs, strict=True)]


def _spread(values: Sequence[float]) -> str:
    return f"{_short(median(values))} ({_short(min(values))} to {_short(max(values))})"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
