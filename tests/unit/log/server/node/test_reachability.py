"""What a server publishes of the replicas that it reaches, over a coordinator that loses answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from waltz_log.coordination.followed import KnownValues
from waltz_log.core import metadata as paths
from waltz_log.core.hand_over import Stranded
from waltz_log.core.topics.sharding import WHOLE
from waltz_log.server.node.reachability import TRIES, Reachability
from waltz_log.testing.memory_coordinator import MemoryEnsemble
from waltz_log.testing.network import MemoryNetwork
from waltz_log.testing.virtual_time import run_in_virtual_time

AFTER_S = 5.0
STRANDED = {3: Stranded(7, 1, ("a", "b", "c"))}


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
