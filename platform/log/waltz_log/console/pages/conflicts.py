"""Hot locks and conflicts: which transaction won over which client, on which lock."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from waltz_log.client.transactions.transaction import lock_hash
from waltz_log.console.console import Console
from waltz_log.console.pages.parameters import number_of, text_of
from waltz_log.console.reading.sampling import Sample

__all__ = ["HotLock", "hot_locks", "routes"]

HOT_SHOWN = 25
CONFLICTS_SHOWN = 100
BUCKETS = 60
"""Columns of the heat map."""
BUCKET_MS = 10_000


@dataclass(frozen=True, slots=True)
class HotLock:
    """`share`: of the hottest one's conflicts, 0 to 1."""

    partition: int
    lock: str
    conflicts: int
    error: int
    share: float


def hot_locks(sample: Sample) -> list[HotLock]:
    """The hottest first."""
    found = [(each.conflicts, each.error, each.lock, number) for number, opened in sample.opened.items() for each in opened.locks.hottest]
    found.sort(key=lambda each: (-each[0], each[3], each[2]))
    top = found[0][0] if found else 1
    return [HotLock(number, lock, times, error, times / top) for times, error, lock, number in found[:HOT_SHOWN]]


def routes(console: Console) -> list[Route]:
    async def show(request: Request) -> Response:
        sample = await console.sampler.sample()
        lock, partition = text_of(request.query_params, "lock"), number_of(request.query_params, "partition")
        name, key = text_of(request.query_params, "name"), text_of(request.query_params, "key")
        if name is not None and key is not None:
            lock = lock_hash((name, key)).hex()
        conflicts = [
            each
            for each in console.sampler.history.conflicts
            if (lock is None or each.lock == lock) and (partition is None or each.partition == partition)
        ]
        clients = Counter(each.client_id for each in conflicts)
        return console.page(
            request,
            "conflicts.html",
            title="Conflicts",
            hot=[each for each in hot_locks(sample) if lock is None or each.lock == lock],
            conflicts=conflicts[:CONFLICTS_SHOWN],
            known=len(conflicts),
            clients=clients.most_common(8),
            lock=lock,
            name=name or "",
            key=key or "",
            partition=partition,
            counts=sorted(
                ((number, opened.locks.conflicts, opened.locks.floor_conflicts, opened.locks.entries) for number, opened in sample.opened.items()),
                key=lambda each: -each[1],
            )[:HOT_SHOWN],
            heat=_heat(console),
        )

    async def heat(_request: Request) -> Response:
        return JSONResponse(_heat(console))

    return [Route("/conflicts", show), Route("/conflicts/heat.json", heat)]


def _heat(console: Console) -> list[tuple[int, list[int]]]:
    """For each partition with conflicts, how many the console saw in each ten seconds of the last ten minutes, oldest first."""
    now = console.clock.now_ms()
    cells: dict[int, list[int]] = {}
    for each in console.sampler.history.conflicts:
        back = (now - each.time_ms) // BUCKET_MS
        if 0 <= back < BUCKETS:
            cells.setdefault(each.partition, [0] * BUCKETS)[BUCKETS - 1 - back] += 1
    return sorted(cells.items())[:32]
