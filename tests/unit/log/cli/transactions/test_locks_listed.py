"""`waltz lock list` against a cluster in memory: conflicts that clients met are shown with the transaction that won."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from waltz_log.cli.transactions import locks as command
from waltz_log.client import ClientSettings, Lock
from waltz_log.client.owners.owners import Owners
from waltz_log.client.transactions.transaction import lock_hash
from waltz_log.core.status.server_statistics import ConflictStatistics, HotLockStatistics, LockTableStatistics
from waltz_log.errors import LockConflict, PermissionDenied, Unavailable
from waltz_log.security.identity import Identity, Role
from waltz_log.testing import InMemoryCluster
from waltz_log.testing.cluster import MemoryCluster

SEAT, OTHER = Lock("seat", "12A"), Lock("seat", "12B")


@pytest.fixture
async def cluster(monkeypatch: pytest.MonkeyPatch, reached_in: Callable[[InMemoryCluster], Any]) -> AsyncIterator[InMemoryCluster]:
    async with InMemoryCluster(partitions=2, storages=1, servers=1) as made:
        monkeypatch.setattr(command, "reached", reached_in(made))
        client = await made.client()
        for _ in range(3):
            await client.append(1, b"x", write_locks=[SEAT])
        for lock in (SEAT, SEAT):
            with pytest.raises(LockConflict):
                await client.append(1, b"y", read_locks=[lock], high_water_mark=0)
        await client.append(0, b"x", write_locks=[OTHER])
        yield made


async def listed(capsys: pytest.CaptureFixture[str], *locks: Lock, partitions: str | None = None) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert await command.listing("", partitions, locks, output="json", every_s=None, timeout_s=5.0) == 0
    out = capsys.readouterr().out
    found: list[dict[str, Any]] = json.JSONDecoder().raw_decode(out[out.index("[\n") :])[0]
    return found


async def test_a_contended_lock_has_its_winner_and_its_conflicts(cluster: InMemoryCluster, capsys: pytest.CaptureFixture[str]) -> None:
    calm, busy = await listed(capsys)
    assert (calm["partition"], calm["conflicts"], calm["locks"], calm["remembered_locks"]) == (0, 0, [], 1)
    assert (busy["conflicts"], busy["remembered_locks"], busy["waiting"]) == (2, 1, 0)
    (lock,) = busy["locks"]
    assert (lock["lock"], lock["conflicts"], lock["last_writer"], lock["exact"]) == (lock_hash(SEAT).hex(), 2, 2, True)


async def test_one_lock_is_found_by_its_name_also_without_a_conflict(cluster: InMemoryCluster, capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = await listed(capsys, SEAT, OTHER, partitions="1")
    assert [(each["name"], each["conflicts"], each["last_writer"]) for each in found["locks"]] == [("seat:12A", 2, 2), ("seat:12B", None, None)]


async def test_the_table_names_the_lock_and_what_is_in_the_way(cluster: InMemoryCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert await command.listing("", "1", [SEAT], output="table", every_s=None, timeout_s=5.0) == 0
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert any(line[:4] == ["1", "seat:12A", "2", "2"] for line in shown)
    with pytest.raises(Unavailable, match="no owner of these partitions answers: 7"):
        await command.listing("", "1,7", [], output="table", every_s=None, timeout_s=5.0)


def test_the_newest_conflict_of_a_lock_counts_and_a_bound_is_shown_as_one() -> None:
    recent = [ConflictStatistics("a", winner, 1, 1, 1000 * winner, remembered=winner < 9) for winner in (3, 9)]
    hottest = (HotLockStatistics("b", 5, 0), HotLockStatistics("a", 2, 0))
    found = command.described(0, LockTableStatistics(1, 0, 7, 1, hottest, 0, recent=tuple(recent)), {})
    assert [(each["lock"], each["conflicts"], each["last_writer"], each["exact"]) for each in found["locks"]] == [
        ("b", 5, None, None),
        ("a", 2, 9, False),
    ]
    assert command._row(0, found["locks"][1])[3] == "at most 9"


async def test_only_operators_get_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def identity(host: str) -> Identity:
        role, _, name = ("operator-tools" if host == "client" else host).partition("-")
        return Identity(f"spiffe://waltz/{role}/{name}", frozenset({Role(role)}))

    made = MemoryCluster(partitions=1, storages=1, servers=1, identities=identity)
    await made.start()

    @asynccontextmanager
    async def reached(host: str, timeout_s: float) -> AsyncIterator[Owners]:
        owners = Owners(made.seeds, made.network.host(host), ClientSettings(connect_timeout_s=timeout_s), random.Random(0))
        await owners.open()
        yield owners
        await owners.close()

    monkeypatch.setattr(command, "reached", reached)
    try:
        with pytest.raises(PermissionDenied):
            await command.listing("reader-a", None, [], output="json", every_s=None, timeout_s=5.0)
        async with reached("operator-o", 5.0) as owners:
            await owners.bound(0, 5.0)  # it is open
        assert await command.listing("operator-o", None, [], output="json", every_s=None, timeout_s=5.0) == 0
    finally:
        await made.stop()
