"""Goes through the ways in which a machine can die during a scenario, and checks the disk that each of them leaves.

A scenario runs once on a simulated disk. Before each changing operation the disk is copied: this is the crash before that operation and after the
previous one. Each change that was not synced may survive or not. If there are few, every subset is tried. If there are more, the extremes, each one
alone, and some random subsets are tried. The last write is torn at every byte, the others at random, also between sectors. A sample of what survives
is crashed again at every operation of its recovery.

Decides nothing about what is right: the scenario says what it expects (`observe`), the check compares. Survivors with the same bytes and the same
expectation are checked once. The same scenario gives the same survivors in the same order, so that four numbers name a failing one.

The idea and its name, states of the disk that a file system may leave, are from ALICE (Pillai et al., OSDI 2014) and CrashMonkey (OSDI 2018).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from random import Random
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from waltz_log.testing.disk import Operation, SimulatedDisk
from waltz_log.testing.medium import LOST, WHOLE, Fate, Pending, drawn_fate

__all__ = ["FULL", "SHORT", "CrashFound", "CrashPoint", "Effort", "Scenario", "Tally", "crash_points", "enumerate_crashes", "survivors"]

S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)

KILLED: Final = 0
"""The survivor if only the process died, not the machine: everything written is there, and nothing more is on the medium."""


class Scenario(Protocol[S_co]):
    async def prepare(self, disk: SimulatedDisk) -> None:
        """Preparation that is not crashed."""
        ...

    async def run(self, disk: SimulatedDisk) -> None: ...
    def observe(self) -> S_co:
        """What a crash at this moment must leave. Hashable; equal if the expectations are equal."""
        ...

    def recover(self, disk: SimulatedDisk) -> Awaitable[None]:
        """Opens the disk and closes it again."""
        ...


@dataclass(frozen=True, slots=True)
class Effort:
    """`subsets_of`: the largest number of unsynced changes for which every subset is tried; `drawn`: the number of random subsets if there are more
    changes; `torn_every`: the step in bytes between the places where the last write is torn; `recovery_every`: one survivor in this number is crashed
    again while it recovers. `command` repeats a failure that was found with these values."""

    command: str
    subsets_of: int
    drawn: int
    torn_every: int
    recovery_every: int


FULL: Final = Effort("make crash", subsets_of=7, drawn=24, torn_every=1, recovery_every=200)
SHORT: Final = Effort("make crash SHORT=1", subsets_of=3, drawn=2, torn_every=101, recovery_every=700)
SECOND: Final = Effort("", subsets_of=1, drawn=2, torn_every=1 << 30, recovery_every=0)


@dataclass(frozen=True, slots=True)
class CrashPoint(Generic[S]):
    """`last`: the operation that was done just before, None at the beginning."""

    number: int
    last: Operation | None
    state: S
    disk: SimulatedDisk


class CrashFound(AssertionError):
    """A survivor that the check refused. `place` names it: scenario, crash point, survivor, and the two of its recovery if it died in that."""

    def __init__(self, place: str, last: Operation | None, reason: str, command: str) -> None:
        self.place = place
        super().__init__(f"crash at {place} after {last}: {reason}\n  replay it: {command} ONLY={place}")


class Tally(NamedTuple):
    """`survivors`: all that were made; `checked`: those that differ; `recoveries`: those that were made by crashing a recovery."""

    points: int = 0
    survivors: int = 0
    checked: int = 0
    recoveries: int = 0


async def crash_points(disk: SimulatedDisk, run: Callable[[SimulatedDisk], Awaitable[None]], observe: Callable[[], S]) -> list[CrashPoint[S]]:
    """The disk before each changing operation of a run, and after the last."""
    points: list[CrashPoint[S]] = []
    begun = len(disk.operations)

    def copy() -> None:
        done = len(disk.operations) - begun
        last = disk.operations[-2] if done > 1 else None
        points.append(CrashPoint(len(points), last, observe(), disk.fork()))

    disk.before = lambda operation: copy()
    await run(disk)
    disk.before = lambda operation: None
    last = disk.operations[-1] if len(disk.operations) > begun else None
    points.append(CrashPoint(len(points), last, observe(), disk.fork()))
    return points


def survivors(point: CrashPoint[S], effort: Effort) -> Iterator[SimulatedDisk]:
    """What may be left of a crash point, always the same in the same order; the first is `KILLED`."""
    yield point.disk.fork()
    for fates in _fates(point.disk.pending(), point.last, effort, Random(point.number)):
        yield point.disk.survivor(fates)


def _fates(pending: list[Pending], last: Operation | None, effort: Effort, random: Random) -> Iterator[Sequence[Fate]]:
    count = len(pending)
    if count <= effort.subsets_of:
        yield from product((LOST, WHOLE), repeat=count)
    else:
        for most, one in ((LOST, WHOLE), (WHOLE, LOST)):
            yield [most] * count
            for place in range(count):
                yield [*[most] * place, one, *[most] * (count - place - 1)]
        for _ in range(effort.drawn):
            yield [LOST if random.random() < 0.5 else WHOLE for _ in pending]
    if last is not None and last.kind == "write" and pending:
        for kept in range(1, pending[-1].size, effort.torn_every):
            yield [*[WHOLE] * (count - 1), kept]
            yield [*[LOST] * (count - 1), kept]
    if any(change.size for change in pending):
        for _ in range(effort.drawn):
            yield [drawn_fate(change, random) for change in pending]


async def enumerate_crashes(
    name: str,
    scenario: Callable[[], Scenario[S]],
    check: Callable[[SimulatedDisk, S], Awaitable[None]],
    effort: Effort,
    only: tuple[int, ...] = (),
    *,
    disk: SimulatedDisk | None = None,
    progress: Callable[[str], None] = lambda reported: None,
) -> Tally:
    """Checks all survivors. Raises `CrashFound` for the first one that the check refuses. `only`: the numbers of one place; `disk`: an empty disk
    with a planted bug; `progress` is called after each survivor."""
    running, disk = scenario(), disk or SimulatedDisk()
    await running.prepare(disk)
    points = await crash_points(disk, running.run, running.observe)
    seen: set[tuple[bytes, S]] = set()
    made = checked = again = 0
    for point in points if not only else points[only[0] : only[0] + 1]:
        for number, survivor in enumerate(survivors(point, effort)):
            made += 1
            if only and number != only[1]:
                continue
            place = f"{name}:{point.number}:{number}"
            # A survivor of a kill is not like one of a crash: what it shows is not on the medium yet.
            known = (survivor.image() + bytes([number == KILLED]), point.state)
            if known in seen:
                continue
            seen.add(known)
            checked += 1
            try:
                if not only[2:]:
                    await check(survivor.fork(), point.state)
            except Exception as error:
                raise CrashFound(place, point.last, _reported(error), effort.command) from error
            if only[2:] or (effort.recovery_every and checked % effort.recovery_every == 0):
                again += await _recovered(place, running, check, survivor, point.state, effort, only[2:])
            progress(f"{name}: crash point {point.number + 1} of {len(points)}, {checked} survivors checked, {again} crashed again")
    return Tally(len(points), made, checked, again)


async def _recovered(
    place: str,
    scenario: Scenario[S],
    check: Callable[[SimulatedDisk, S], Awaitable[None]],
    disk: SimulatedDisk,
    state: S,
    effort: Effort,
    only: tuple[int, ...],
) -> int:
    made = 0
    for point in await crash_points(disk, scenario.recover, lambda: state):
        for number, survivor in enumerate(survivors(point, SECOND)):
            if not only or only == (point.number, number):
                made += 1
                try:
                    await check(survivor, state)
                except Exception as error:
                    raise CrashFound(f"{place}:{point.number}:{number}", point.last, _reported(error), effort.command) from error
    return made


def _reported(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
