"""No creation leaves a topic pending for longer than a bound, wherever it fails or dies, and what it says of the topic is what the catalogue says."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any

import pytest

from waltz_log.cli.topics.topics import _list
from waltz_log.client import ClientSettings
from waltz_log.coordination.topic_creation import TopicPlan, create_topic
from waltz_log.coordination.topics import read_catalogue, write_catalogue
from waltz_log.core.topics.catalogue import Catalogue, Topic
from waltz_log.core.topics.topic_names import TopicName
from waltz_log.errors import ClusterUnavailable, InvalidRequest, Unavailable
from waltz_log.server.node.pending_topics import PENDING_MAX_S
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.testing.virtual_time import run_in_virtual_time

NAME = TopicName("shop", "orders")
PATIENT = ClientSettings(retry_base_s=0.01, retry_cap_s=0.1, append_timeout_s=2 * PENDING_MAX_S)


class Killed(BaseException):
    """The process of the creation is gone."""


class Breaking:
    """A coordinator whose call number `at` fails with `error`, before or after it takes effect, and with `dead` every later call."""

    def __init__(self, inner: Any, at: int, error: BaseException, *, after: bool, dead: bool) -> None:
        self._inner = inner
        self._at = at
        self._error = error
        self._after = after
        self._dead = dead
        self.calls = 0

    async def _call(self, name: str, *arguments: Any, **named: Any) -> Any:
        number, self.calls = self.calls, self.calls + 1
        if (number == self._at and not self._after) or (number > self._at and self._dead):
            raise self._error
        found = await getattr(self._inner, name)(*arguments, **named)
        if number == self._at:
            raise self._error
        return found

    def __getattr__(self, name: str) -> Any:
        return partial(self._call, name)


async def creation(cluster: MemoryCluster, coordinator: Any) -> Topic:
    plan = TopicPlan(NAME, 1, log_partitions=(0,), existing="keep")
    return await create_topic(coordinator, cluster.network, plan, now_ms=cluster.clock.now_ms, timeout_s=5.0)


@pytest.mark.parametrize("after", [False, True], ids=["before the call", "after the call"])
def test_partitions_accept_raw_appends_again_after_the_creator_is_killed_at_any_step(after: bool) -> None:
    left_pending: list[int] = []

    async def run(step: int) -> bool:
        cluster = MemoryCluster(partitions=1, servers=1)
        await cluster.start()
        raw = await cluster.connect(PATIENT)
        await raw.append(0, b"before")
        session = cluster.ensemble.session()
        breaking = Breaking(session, step, Killed(), after=after, dead=True)
        try:
            await creation(cluster, breaking)
            ended = breaking.calls <= step
        except Killed:
            ended = False
            found = await read_catalogue(session)
            if NAME not in found.topics:
                if found.pending:
                    left_pending.append(step)
                began_s = asyncio.get_running_loop().time()
                assert (await raw.append(0, b"after")).transaction_id == 1
                assert asyncio.get_running_loop().time() - began_s < PENDING_MAX_S + 5
                assert not (await read_catalogue(session)).pending
        await raw.close()
        await cluster.stop()
        return ended

    step = 0
    while not run_in_virtual_time(run(step)):
        step += 1
    assert len(left_pending) >= 3


@pytest.mark.parametrize("after", [False, True], ids=["before the call", "after the call"])
def test_a_coordinator_that_fails_once_leaves_nothing_pending_and_the_answer_is_true(after: bool) -> None:
    async def run(step: int) -> bool:
        cluster = MemoryCluster(partitions=1, servers=1)
        await cluster.start()
        raw = await cluster.connect(PATIENT)
        await raw.append(0, b"before")
        session = cluster.ensemble.session()
        breaking = Breaking(session, step, ClusterUnavailable(address="memory/test", reason="planted"), after=after, dead=False)
        try:
            made = await creation(cluster, breaking)
        except Unavailable:
            found = await read_catalogue(session)
            assert (found.topics, found.pending) == ({}, {})
        else:
            found = await read_catalogue(session)
            assert (found.topics, found.pending) == ({NAME: made}, {})
            assert made.begins_at == (1,)
        await raw.close()
        await cluster.stop()
        return breaking.calls <= step

    step = 0
    while not run_in_virtual_time(run(step)):
        step += 1
    assert step > 6


def test_an_error_says_that_the_outcome_is_not_known_where_the_withdrawal_fails_too() -> None:
    async def run() -> None:
        cluster = MemoryCluster(partitions=1, servers=1)
        await cluster.start()
        raw = await cluster.connect(PATIENT)
        await raw.append(0, b"before")
        session = cluster.ensemble.session()
        step = 0
        while not (await read_catalogue(session)).pending:
            breaking = Breaking(session, step, ClusterUnavailable(address="memory/test", reason="planted"), after=True, dead=True)
            with pytest.raises(Unavailable) as raised:
                await creation(cluster, breaking)
            step += 1
        assert "it is not known whether topic shop/orders was created" in str(raised.value)
        await raw.close()
        await cluster.stop()

    run_in_virtual_time(run())


def test_a_repeated_activation_gives_the_topic_of_the_catalogue_and_a_withdrawn_one_is_refused() -> None:
    about = {"type": "regular", "partitions": 1, "pool": range(2), "now_ms": 0}
    found, topic = Catalogue().reserved(NAME, **about)
    active, made = found.activated(topic, [7])
    assert active.activated(topic, [7]) == (active, made)
    assert made.begins_at == (7,)
    gone, _ = found.withdrawn(topic)
    again, _ = gone.reserved(NAME, **about)
    for each in (gone, again):
        with pytest.raises(InvalidRequest):
            each.activated(topic, [7])


def test_a_creation_that_goes_on_keeps_its_reservation_for_the_bound() -> None:
    async def run() -> None:
        cluster = MemoryCluster(partitions=1, servers=2)
        await cluster.start()
        session = cluster.ensemble.session()
        plan = TopicPlan(NAME, 1, log_partitions=(0,))
        await write_catalogue(session, lambda found: found.reserved(NAME, **plan.about((0,), range(1), 0)))
        await asyncio.sleep(PENDING_MAX_S - 1)
        assert NAME in (await read_catalogue(session)).pending
        await asyncio.sleep(2)
        assert not (await read_catalogue(session)).pending
        await cluster.stop()

    run_in_virtual_time(run())


def test_the_list_of_topics_shows_pending_ones(capsys: pytest.CaptureFixture[str]) -> None:
    found, topic = Catalogue().reserved(NAME, type="regular", partitions=1, pool=range(2), now_ms=0)
    active, _ = found.activated(topic, [0])
    for catalogue, state in ((found.pending, "pending"), (active.topics, "active")):
        _list([(catalogue[NAME], state)], "table")
        assert state in capsys.readouterr().out
        _list([(catalogue[NAME], state)], "json")
        assert [(each["topic"], each["state"]) for each in json.loads(capsys.readouterr().out)] == [("shop/orders", state)]
