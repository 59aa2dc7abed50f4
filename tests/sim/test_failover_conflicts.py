"""What a change of owner costs in conflicts that would not have been there: nothing at a hand-over, and at a kill only what was on its way."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waltz_log.client import Lock, LockConflict, WaltzClient
from waltz_log.client.transactions.follow import Follower
from waltz_log.core.locks.locks import LockTable
from waltz_log.core.metadata import handed_locks_path
from waltz_log.server.ordering.handed_locks import HandedLocks, read_handed_locks
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.testing.virtual_time import run_in_virtual_time

CLIENTS, LANES = 4, 4


@dataclass
class _Load:
    """Clients that follow the log and append under locks that no other client uses, each append decided from what was applied: no conflict is
    true."""

    cluster: MemoryCluster
    rng: random.Random
    conflicts: list[float] = field(default_factory=list)
    """When the transactions were begun that learned of one."""
    committed: int = 0
    ended: bool = False

    async def client(self, number: int, client: WaltzClient) -> None:
        follower = await client.follow(0, lambda batch: None, after=await client.high_water_mark(0))
        await asyncio.gather(*(self._lane(client, follower, f"{number}-{lane}") for lane in range(LANES)))
        await follower.close()

    async def _lane(self, client: WaltzClient, follower: Follower, name: str) -> None:
        loop = asyncio.get_running_loop()
        key = 0
        while not self.ended:
            began = loop.time()
            try:
                locks = [Lock(name, key)]
                await client.append(0, b"x", write_locks=locks, high_water_mark=follower.applied, timeout_s=60)
                self.committed += 1
            except LockConflict as error:
                self.conflicts.append(began)
                await follower.wait(error.winner)
            key = (key + 1) % 50
            await asyncio.sleep(self.rng.uniform(0, 0.01))


async def _change_of_owner(seed: int, *, kill: bool) -> tuple[_Load, float]:
    """The load after it, and when it was."""
    rng = random.Random(seed)
    cluster = MemoryCluster(delay_s=lambda: rng.uniform(0.0005, 0.003))
    await cluster.start()
    clients = [await cluster.connect(seed=number) for number in range(CLIENTS)]
    load = _Load(cluster, rng)
    tasks = [asyncio.ensure_future(load.client(number, client)) for number, client in enumerate(clients)]
    await asyncio.sleep(0.4)
    assert not load.conflicts
    before = load.committed
    owner = next(name for name, (server, _) in cluster.servers.items() if server._partitions)
    at = asyncio.get_running_loop().time()
    await (cluster.kill_server(owner) if kill else cluster.stop_server(owner))
    await asyncio.sleep(0.6)
    load.ended = True
    await asyncio.gather(*tasks)
    assert load.committed > before > 100
    for client in clients:
        await client.close()
    await cluster.stop()
    return load, at


@pytest.mark.parametrize("seed", range(2))
def test_a_hand_over_causes_no_conflict(seed: int) -> None:
    async def scenario() -> None:
        load, _ = await _change_of_owner(seed, kill=False)
        assert load.conflicts == []

    run_in_virtual_time(scenario())


@pytest.mark.parametrize("seed", range(2))
def test_a_kill_causes_no_conflict_but_for_what_was_on_its_way(seed: int) -> None:
    async def scenario() -> None:
        load, killed = await _change_of_owner(seed, kill=True)
        assert [began for began in load.conflicts if began > killed + 0.01] == []
        assert len(load.conflicts) <= CLIENTS * LANES, "nothing on its way was told twice"

    run_in_virtual_time(scenario())


def test_locks_that_were_left_count_for_their_session_and_mark_alone() -> None:
    async def scenario() -> None:
        cluster = MemoryCluster()
        session = cluster.ensemble.session()
        assert await read_handed_locks(session, 0, 3, 7) is None
        left = HandedLocks(3, 7, 2, {-5: 4, 9: 7})
        await session.create(handed_locks_path(0), left.to_bytes())
        assert await read_handed_locks(session, 0, 3, 7) == left
        assert await read_handed_locks(session, 0, 4, 7) is None
        assert await read_handed_locks(session, 0, 3, 8) is None
        await session.set(handed_locks_path(0), left.to_bytes()[:-1], -1)
        assert await read_handed_locks(session, 0, 3, 7) is None

    run_in_virtual_time(scenario())


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 6)), max_size=40), st.integers(0, 12), st.integers(4, 30))
def test_a_table_that_follows_judges_as_the_one_before_would_above_the_floor_and_never_misses_below(
    written: list[tuple[int, int]], handed_max: int, entries_max: int
) -> None:
    table = LockTable(-1, entries_max)
    true: dict[int, int] = {}
    next_id = 0
    for lock, back in written:
        verdict = table.judge([next_id - 1 - back], b"\1\0\0", [lock], next_id)
        if verdict.accepted:
            true[lock] = next_id
            next_id += 1
    following = LockTable(next_id - 1, entries_max)
    floor, writers = table.newest(handed_max)
    assert len(writers) <= handed_max
    following.know(floor, writers)
    for lock in range(13):
        last = true.get(lock, -1)
        assert following.last_writer(lock) >= last, "a writer was missed"
        assert following.last_writer(lock) == (last if last > floor else floor)


def test_more_locks_than_find_room_raise_the_floor() -> None:
    table = LockTable(-1, 1000)
    count = 100
    locks = list(range(count))
    table.judge([-1] * count, b"\1\0\0" * count, locks, 0)
    floor, writers = table.newest(10)
    assert floor == 89
    assert writers == {lock: lock for lock in range(90, 100)}
    assert len(HandedLocks(1, 99, floor, writers).to_bytes()) == 24 + 16 * 10
