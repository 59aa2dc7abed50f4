"""`waltz subscribers`: what it shows, and that a dry run changes nothing."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from waltz_log.cli.main import run
from waltz_log.cli.topics import subscribers as command
from waltz_log.coordination.subscribers import propose_retained, register_subscriber, settle_retained
from waltz_log.coordination.topics import change_catalogue
from waltz_log.core import metadata as paths
from waltz_log.core.metadata import ClusterParameters, ReplicaAssignment
from waltz_log.core.ports import Coordinator
from waltz_log.core.topics.subscribers import Subscriber
from waltz_log.core.topics.topic_names import TopicName
from waltz_log.testing.cluster import CLUSTER_KEY
from waltz_log.testing.memory_coordinator import MemoryEnsemble

ADDRESS = "127.0.0.1:2181/waltz"


@pytest.fixture
def ensemble(monkeypatch: pytest.MonkeyPatch) -> MemoryEnsemble:
    ensemble = MemoryEnsemble()

    @asynccontextmanager
    async def connected(address: str, timeout_s: float) -> AsyncIterator[Coordinator]:
        assert address == ADDRESS
        session = ensemble.session()
        if await session.get(paths.CLUSTER) is None:
            await session.create(paths.CLUSTER, ClusterParameters("test", CLUSTER_KEY, 2).to_bytes())
            await session.create(paths.REPLICAS, ReplicaAssignment({0: ("storage-0",), 1: ("storage-0",)}).to_bytes())
            await change_catalogue(
                session, lambda found: found.with_new(TopicName("shop", "orders"), type="regular", partitions=1, pool=[1], now_ms=0)
            )
            await register_subscriber(session, Subscriber("billing", {0: -1, 1: 41}, {"host": "app-7"}, 1000, 61_000))
            _, version = await propose_retained(session, 1, 40)
            assert await settle_retained(session, 1, 40, version)
        yield session

    monkeypatch.setattr(command, "_connected", connected)
    return ensemble


def test_each_subscriber_is_shown_with_its_marks_and_what_is_kept(ensemble: MemoryEnsemble, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["subscribers", "list", ADDRESS, "--output", "json"]) == 0
    (reported,) = json.loads(capsys.readouterr().out)
    assert (reported["name"], reported["labels"], reported["seen"]) == ("billing", {"host": "app-7"}, "1970-01-01T00:01:01+00:00")
    assert reported["partitions"] == [
        {"partition": 0, "topic": "", "mark": -1, "high_water_mark": None, "lag_transactions": None, "first_retained": 0},
        {"partition": 1, "topic": "shop/orders/0", "mark": 41, "high_water_mark": None, "lag_transactions": None, "first_retained": 40},
    ]
    assert run(["subscribers", "list", ADDRESS]) == 0
    shown = capsys.readouterr().out
    for each in ("billing", "shop/orders/0", "41", "40", "not known", "host=app-7", "1970-01-01T00:01:01"):
        assert each in shown


def test_lag_is_what_is_committed_and_not_reported() -> None:
    known = Subscriber("billing", {0: 7, 1: 9}, {}, 0, 5000)
    reported = command.described(known, {0: 10, 1: 9}, {}, {}, 65_500)
    assert [place["lag_transactions"] for place in reported["partitions"]] == [3, 0]
    assert reported["silent_s"] == 60


def test_removing_says_what_is_kept_no_more_and_a_dry_run_changes_nothing(ensemble: MemoryEnsemble, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["subscribers", "remove", ADDRESS, "billing", "--dry-run"]) == 0
    assert "would be removed: billing; nothing is kept for it above -1 of partition 0, 41 of partition 1" in capsys.readouterr().out
    assert run(["subscribers", "remove", ADDRESS, "billing", "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"name": "billing", "removed": True, "marks": {"0": -1, "1": 41}}
    assert run(["subscribers", "remove", ADDRESS, "billing"]) != 0
    assert "no such subscriber: billing" in capsys.readouterr().err
    assert run(["subscribers", "list", ADDRESS, "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
