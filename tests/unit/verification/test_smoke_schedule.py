"""The outages of the smoke test: those of the original at a chosen rate, the same for the same seed."""

from __future__ import annotations

from collections import Counter
from itertools import takewhile

import pytest

from verification.smoke.schedule import Outage, outages

SERVERS, STORAGES = ["server-0", "server-1", "server-2"], ["storage-0", "storage-1", "storage-2"]
EVERY_S = {"zookeeper": 80, "server-0": 40, "server-1": 60, "server-2": 100, "storage-0": 60, "storage-1": 100, "storage-2": 120}
"""Of the original."""


def _for(seconds: float, seed: int = 3, rate: float = 2.0, pace: float = 1.0) -> list[Outage]:
    return list(takewhile(lambda each: each.at_s < seconds, outages(seed, servers=SERVERS, storages=STORAGES, rate=rate, pace=pace)))


def test_every_process_is_killed_as_often_as_the_rate_says() -> None:
    counts = Counter(each.name for each in _for(100_000) if each.kind == "killed")
    for name, every_s in EVERY_S.items():
        assert counts[name] == pytest.approx(100_000 / every_s * 2, rel=0.1)


def test_outages_last_as_long_as_in_the_original() -> None:
    lasts = {each.name: each.lasts_s for each in _for(1000) if each.kind == "killed"}
    assert lasts == {"zookeeper": 5.0} | dict.fromkeys((*SERVERS, *STORAGES), 10.0)


def test_every_process_is_stopped_sometimes() -> None:
    stopped = Counter(each.name for each in _for(10_000) if each.kind == "stopped")
    assert set(stopped) == set(EVERY_S)
    assert stopped.total() == pytest.approx(10_000 / 15, rel=0.1)


def test_outages_come_in_the_order_of_time_and_are_the_same_for_the_same_seed() -> None:
    found = _for(2000)
    assert [each.at_s for each in found] == sorted(each.at_s for each in found)
    assert found == _for(2000)
    assert found != _for(2000, seed=4)


def test_a_process_is_up_between_two_of_its_outages() -> None:
    ended: dict[str, float] = {}
    for each in _for(20_000):
        if each.kind == "killed":
            assert each.at_s > ended.get(each.name, 0.0)
            ended[each.name] = each.at_s + each.lasts_s


def test_pace_shortens_everything_alike() -> None:
    slow, fast = _for(1000), _for(250, pace=4.0)
    assert [(each.name, each.kind) for each in fast] == [(each.name, each.kind) for each in slow]
    assert [each.at_s * 4 for each in fast] == pytest.approx([each.at_s for each in slow])
    assert [each.lasts_s * 4 for each in fast] == pytest.approx([each.lasts_s for each in slow])
