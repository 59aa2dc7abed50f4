"""`waltz cluster status --wait`: a node that is busy is asked with more patience each time, and a check without a wait stays short."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from waltz_log.cli.cluster import cluster
from waltz_log.coordination.survey import CALL_TIMEOUT_S, ServerState, Survey
from waltz_log.exit_codes import OK, UNAVAILABLE


class Coordinator:
    @classmethod
    async def connect(cls, address: str, *, timeout_s: float) -> Coordinator:
        return cls()

    async def close(self) -> None: ...


@pytest.fixture
def asked_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """With how much patience: the only server answers callers after 5 s."""
    asked: list[float] = []

    async def survey(coordinator: Any, network: Any, address: str, *, call_timeout_s: float = CALL_TIMEOUT_S) -> Survey:
        asked.append(call_timeout_s)
        return Survey("dev", "key", (), (ServerState(1, "127.0.0.1:1", call_timeout_s >= 5.0, {}),), ())

    monkeypatch.setattr(cluster, "survey", survey)
    monkeypatch.setattr(cluster, "ZooKeeperCoordinator", Coordinator)
    monkeypatch.setattr(cluster, "POLL_EVERY_S", 0.0)
    return asked


async def test_who_waits_asks_a_busy_node_with_more_patience_each_time(asked_s: list[float]) -> None:
    assert await cluster.status("127.0.0.1:1/waltz/dev", output="json", wait_s=60, complete=True, timeout_s=1) == OK
    assert asked_s == [2.0, 3.0, 4.5, 6.75]


async def test_the_patience_has_an_end(asked_s: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "PATIENCE_MAX_S", 4.0)
    monkeypatch.setattr("waltz_log.cli.cluster.cluster.monotonic", count(0.0, 10.0).__next__)
    assert await cluster.status("127.0.0.1:1/waltz/dev", output="json", wait_s=200, complete=True, timeout_s=1) == UNAVAILABLE
    assert max(asked_s) == 4.0


async def test_the_last_check_stays_within_the_rest_of_the_wait(asked_s: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waltz_log.cli.cluster.cluster.monotonic", iter([0.0, 1.0, 2.5, 4.0, 4.5, 9.0]).__next__)
    assert await cluster.status("127.0.0.1:1/waltz/dev", output="json", wait_s=5, complete=True, timeout_s=1) == UNAVAILABLE
    assert asked_s == [2.0, 2.5, 2.0], "2.5 s of 5 were left, then 0.5: a node that answers at once is heard all the same"


async def test_a_check_without_a_wait_stays_short(asked_s: list[float]) -> None:
    await cluster.status("127.0.0.1:1/waltz/dev", output="json", wait_s=0, complete=True, timeout_s=1)
    assert asked_s == [CALL_TIMEOUT_S]
