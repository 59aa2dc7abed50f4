"""Places that no principal can keep from the others: how many there are, whose turn is next, and that none is lost."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from waltz_log.server.base.fair_places import FairPlaces
from waltz_log.testing.virtual_time import run_in_virtual_time


class Work:
    """Calls that each hold a place for a while. `begun`: their principals in the order in which they got one."""

    def __init__(self, places: FairPlaces) -> None:
        self.places = places
        self.begun: list[str] = []
        self.begun_s: list[float] = []
        self.now: Counter[str] = Counter()
        self.most = 0
        self.most_of_one: Counter[str] = Counter()

    async def call(self, principal: str, lasts_s: float = 1.0) -> None:
        async with self.places.place(principal):
            self.begun.append(principal)
            self.begun_s.append(asyncio.get_running_loop().time())
            self.now[principal] += 1
            self.most = max(self.most, self.now.total())
            self.most_of_one[principal] = max(self.most_of_one[principal], self.now[principal])
            try:
                await asyncio.sleep(lasts_s)
            finally:
                self.now[principal] -= 1


def test_all_places_are_used_and_one_principal_has_half_of_them() -> None:
    async def main() -> Work:
        work = Work(FairPlaces(8))
        await asyncio.gather(*(work.call(principal) for principal in "abc" for _ in range(20)))
        assert work.places.held == 0
        return work

    work = run_in_virtual_time(main())
    assert work.most == 8
    assert max(work.most_of_one.values()) == 4


@pytest.mark.parametrize(("principal", "most"), [("a", 4), ("", 8)], ids=["a principal", "without principals"])
def test_callers_of_one_name_alone_have_half_of_the_places_and_without_names_all(principal: str, most: int) -> None:
    async def main() -> int:
        work = Work(FairPlaces(8))
        await asyncio.gather(*(work.call(principal) for _ in range(20)))
        return work.most

    assert run_in_virtual_time(main()) == most


def test_one_place_is_enough_for_every_principal() -> None:
    async def main() -> list[str]:
        work = Work(FairPlaces(1))
        await asyncio.gather(*(work.call(principal) for principal in "aaab"))
        return work.begun

    assert run_in_virtual_time(main()) == ["a", "a", "b", "a"], "the second of a was next when the other principal came"


def test_principals_have_their_turns_however_many_calls_of_one_wait() -> None:
    async def main() -> list[str]:
        work = Work(FairPlaces(2))
        many = [asyncio.ensure_future(work.call(principal)) for principal in "ab" for _ in range(1000)]
        await asyncio.sleep(0.5)
        await work.call("c")
        assert work.begun.count("a") + work.begun.count("b") <= 6
        for each in many:
            each.cancel()
        await asyncio.wait(many)
        return work.begun

    assert "c" in run_in_virtual_time(main())


def test_a_place_is_free_after_its_limit_while_its_work_goes_on() -> None:
    async def main() -> tuple[list[float], int]:
        work = Work(FairPlaces(4, limit_s=2.0))
        await asyncio.gather(*(work.call(principal, 60.0) for principal in "ab" for _ in range(4)))
        held = work.places.held
        await asyncio.gather(*(work.call(principal) for principal in "abcd" for _ in range(4)))
        return work.begun_s, held

    begun_s, held = run_in_virtual_time(main())
    assert begun_s[:8] == [0.0] * 4 + [2.0] * 4
    assert held == 0, "a place that was free before its work ended is returned once"
    assert begun_s[8:] == [62.0 + at for at in range(4) for _ in range(4)]


@pytest.mark.parametrize("seed", range(20))
def test_no_place_is_lost_or_given_twice_when_callers_are_cancelled_at_any_moment(seed: int) -> None:
    async def main() -> tuple[int, int, int, int]:
        rng = random.Random(seed)
        work = Work(FairPlaces(4, limit_s=rng.choice([None, 0.3])))
        if work.places._limit_s is not None:
            bound = 10**6  # work goes on without its place
        else:
            bound = 4
        tasks: list[asyncio.Task[None]] = []
        for _ in range(300):
            tasks.append(asyncio.ensure_future(work.call(rng.choice("abcde"), rng.choice([0.0, 0.1, 0.5]))))
            if rng.random() < 0.4:
                rng.choice(tasks).cancel()
            if rng.random() < 0.5:
                await asyncio.sleep(rng.choice([0, 0, 0.05]))
            assert work.places.held <= 4
        await asyncio.wait(tasks)
        assert work.most <= bound
        begun = len(work.begun)
        await asyncio.gather(*(work.call(principal, 0.1) for principal in "abcd" for _ in range(2)))
        return work.places.held, len(work.places._waiting), len(work.begun) - begun, len(work.places._held)

    assert run_in_virtual_time(main()) == (0, 0, 8, 0)


def test_a_caller_that_is_cancelled_as_its_turn_comes_returns_the_place() -> None:
    async def main() -> list[str]:
        work = Work(FairPlaces(1))
        async with work.places.place("a"):
            second, third = (asyncio.ensure_future(work.call(principal)) for principal in "bc")
            await asyncio.sleep(0)
        second.cancel()  # it has the place, and did not run since
        async with asyncio.timeout(10):
            await third
        assert second.cancelled()
        return work.begun

    assert run_in_virtual_time(main()) == ["c"]
