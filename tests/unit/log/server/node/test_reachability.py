"""What a server publishes of the replicas that it reaches, over a coordinator that loses answers, and beside reports that cannot be read."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from waltz_log.coordination.followed import KnownValues
from waltz_log.core import metadata as paths
from waltz_log.core.assignment import assign
from waltz_log.core.hand_over import Stranded, reach_to_bytes, stranded_to_bytes
from waltz_log.core.metadata import Assignment, ReplicaAssignment, ServerEntry
from waltz_log.core.topics.sharding import WHOLE
from waltz_log.server.node.hand_overs import HandOvers
from waltz_log.server.node.reachability import TRIES, Reachability
from waltz_log.testing.memory_coordinator import MemoryEnsemble
from waltz_log.testing.network import MemoryNetwork
from waltz_log.testing.virtual_time import run_in_virtual_time

AFTER_S = 5.0
STRANDED = {3: Stranded(7, 1, ("a", "b", "c"))}
GARBAGE = (
    b"",
    b"x",
    b"{",
    b"null",
    b"7",
    b"[" * 9999,
    b'{"x":[7,1,["a"]]}',
    b'{"0":[1,1]}',
    b'{"0":[1,"9",["a"]]}',
    b'{"0":[1,9,[["a"]]]}',
    b'["1",{}]',
    b"[1,[]]",
    b'[1,{"0":[["a"]]}]',
)


def _losing(answers: int) -> Iterator[bool]:
    for _ in range(answers):
        yield True
    while True:
        yield False


async def _published_after_s(lost: int) -> float:
    """How long after it is overdue that a partition without a majority is published, if this number of answers in a row is lost."""
    ensemble = MemoryEnsemble()
    found = Reachability(7, WHOLE, ensemble.session(), MemoryNetwork(), b"k" * 16, AFTER_S, lambda: STRANDED, KnownValues())
    await ensemble.session().create(paths.STRANDED, b"")
    losing = _losing(lost)
    ensemble.loses_answer = lambda: next(losing)
    reporting = asyncio.ensure_future(found.report())
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    while not ensemble.children(paths.STRANDED):
        await asyncio.sleep(0.01)
    took_s = loop.time() - began_s - AFTER_S
    reporting.cancel()
    await asyncio.gather(reporting, return_exceptions=True)
    return took_s


def test_a_lost_answer_costs_no_round() -> None:
    without, one_less = (run_in_virtual_time(_published_after_s(lost)) for lost in (0, TRIES - 1))
    assert one_less - without < 0.1
    assert run_in_virtual_time(_published_after_s(TRIES)) - without > 0.3, "after as many, the next round tries again"


async def _with_reports(garbage: bytes, **good: bytes) -> MemoryEnsemble:
    ensemble = MemoryEnsemble()
    session = ensemble.session()
    await session.create(paths.REPLICAS, ReplicaAssignment({0: ("a", "b", "c")}).to_bytes())
    for folder in (paths.STRANDED, paths.REACH):
        await session.create(folder, b"")
        await session.create(f"{folder}/broken", garbage)
    for name, report in good.items():
        await session.create(f"{paths.STRANDED if name == 'stranded' else paths.REACH}/{name}", report)
    return ensemble


@pytest.mark.parametrize("garbage", GARBAGE)
async def test_a_report_that_cannot_be_read_keeps_no_partition_from_another_server(garbage: bytes) -> None:
    stranded = stranded_to_bytes({0: Stranded(1, 1, ("a", "b", "c"))})
    reports = {"stranded": stranded, "one": reach_to_bytes(1, {0: ["a"]}), "other": reach_to_bytes(2, {0: ["b", "c"]})}
    ensemble = await _with_reports(garbage, **reports)
    before = assign(Assignment(), [ServerEntry(1, "h:1", (0,)), ServerEntry(2, "h:2")], 1)
    assert before.partitions[0].server_id == 1
    after = await HandOvers(ensemble.session(), AFTER_S, KnownValues()).apply(before)
    assert after.partitions[0].server_id == 2


async def _rounds_in_a_minute(garbage: bytes) -> int:
    ensemble = await _with_reports(garbage)
    found, rounds = HandOvers(ensemble.session(), AFTER_S, KnownValues()), 0
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + 60
    while loop.time() < ends_s and rounds < 1000:
        await found.apply(Assignment())
        await found.wait_round()
        rounds += 1
    return rounds


@pytest.mark.parametrize("garbage", [b"", b"{}"])
def test_a_report_of_nothing_does_not_keep_the_manager_busy(garbage: bytes) -> None:
    assert run_in_virtual_time(_rounds_in_a_minute(garbage)) <= 121


@pytest.mark.parametrize("garbage", GARBAGE)
def test_a_server_publishes_what_it_reaches_beside_a_report_that_cannot_be_read(garbage: bytes) -> None:
    async def main() -> None:
        ensemble = await _with_reports(garbage, stranded=stranded_to_bytes({0: Stranded(1, 1, ("a", "b", "c"))}))
        scouting = asyncio.ensure_future(Reachability(7, WHOLE, ensemble.session(), MemoryNetwork(), b"k" * 16, AFTER_S, dict, KnownValues()).scout())
        async with asyncio.timeout(60):
            while await ensemble.session().get(f"{paths.REACH}/0000000007-0") is None:
                await asyncio.sleep(0.1)
        scouting.cancel()
        await asyncio.gather(scouting, return_exceptions=True)

    run_in_virtual_time(main())
