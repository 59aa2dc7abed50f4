"""kill -9 of a service with an outbox, again and again, while the log fails too: each accepted intent is in the log exactly once.

The small run is for every change; `make outbox-kills` (and the slow tests) kill a hundred times and accept ten thousand.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from waltz_log.client import ClientSettings, Lock, Outbox, OutboxSettings, Transaction, TransactionContext, WaltzClient
from waltz_log.filesystem import FileSystemDisk
from waltz_log.outbox.offline import OutboxDirectory
from waltz_log.processes.children import Processes
from waltz_log.processes.local_cluster import LocalCluster

SERVICE = Path(__file__).with_name("outbox_service.py")
STARTED_WITHIN_S = 60.0
FORWARDED_WITHIN_S = 120.0


class Kills:
    def __init__(self, cluster: LocalCluster, directory: Path, seed: int) -> None:
        self._cluster = cluster
        self._directory = directory
        self._outbox = directory / "outbox"
        self._accepted = directory / "accepted"
        self._accepted.touch()
        self._rng = random.Random(seed)
        self._processes = Processes(directory / "logs")
        self.lives = 0
        self.in_doubt_found = 0

    def run(self, kills: int, intents: int, faults: int) -> None:
        try:
            away: list[str] = []
            fault_every = max(1, kills // faults)
            while self.lives < kills or self._count() < intents:
                if self.lives % fault_every == 0:
                    self._break(away)
                self._live()
                self._inspect()
            self._repair(away)
        finally:
            self._processes.close()

    def _count(self) -> int:
        return len(self._accepted.read_text().splitlines())

    def _live(self) -> None:
        """One life of the service; every other one ends between a sending and its answer, the others at any moment."""
        self.lives += 1
        on_purpose = self.lives % 2 == 0
        before = self._count()
        frames = self._rng.randrange(1, 30) if on_purpose else 0
        name = f"service-{self.lives}"
        command = [sys.executable, str(SERVICE), self._cluster.cluster, str(self._outbox), str(self._accepted), f"life{self.lives}", str(frames)]
        self._processes.start(name, command)
        self._wait(lambda: not self._processes.running(name) or self._count() > before, name)
        if on_purpose and self._processes.wait(name, 8.0) is not None:
            return
        if not on_purpose:
            time.sleep(self._rng.choice([0.0, self._rng.uniform(0, 0.4)]))
        if self._processes.running(name):  # in a life without an owner no frame is ever sent
            self._processes.kill(name)

    def _wait(self, condition: Callable[[], bool], name: str) -> None:
        deadline = time.monotonic() + STARTED_WITHIN_S
        while not condition():
            assert time.monotonic() < deadline, f"{name} accepts nothing: {self._processes.last_words(name)}"
            time.sleep(0.01)

    def _inspect(self) -> None:
        """What the killed process left behind, as the next one will read it."""
        with OutboxDirectory(FileSystemDisk(self._outbox), 0, OutboxSettings(file_bytes=256 * 1024, bytes_max=8 * 1024 * 1024)) as directory:
            self.in_doubt_found += any(entry.attempt is not None for entry in directory.pending())

    def _break(self, away: list[str]) -> None:
        self._repair(away)
        name = self._rng.choice(["server-0", "server-1", "storage-0", "storage-1", "storage-2"])
        self._cluster.kill(name)
        away.append(name)

    def _repair(self, away: list[str]) -> None:
        while away:
            self._cluster.start(away.pop())

    def check(self) -> None:
        asyncio.run(self._check())

    async def _check(self) -> None:
        counts: dict[int, int] = {}

        def apply(transactions: list[Transaction]) -> None:
            for transaction in transactions:
                event = json.loads(transaction.data)
                if "count" in event:
                    counts[event["key"]] = event["count"]

        settings = OutboxSettings(bytes_max=8 * 1024 * 1024, file_bytes=256 * 1024, retry_cap_s=0.3, attempts_max=10_000)
        outbox = Outbox.over(self._outbox, self._cluster.cluster, settings, ClientSettings(retry_cap_s=0.2))

        @outbox.handler("count")
        def count(tx: TransactionContext, arguments: Any) -> None:
            key = arguments["key"]
            tx.append(json.dumps({**arguments, "count": counts.get(key, 0) + 1}).encode(), write_locks=[Lock("key", key)])

        outbox.follow(0, apply)
        async with outbox, asyncio.timeout(FORWARDED_WITHIN_S):
            await outbox.flush()
            assert outbox.dead_letters() == []
        seen: set[str] = set()
        counted: dict[int, int] = {}
        async with WaltzClient.open(self._cluster.cluster) as client:
            for partition in range(2):
                for event in await _events(client, partition):
                    assert event["value"] not in seen, f"twice in the log: {event}"
                    seen.add(event["value"])
                    if "count" in event:
                        counted[event["key"]] = counted.get(event["key"], 0) + 1
                        assert event["count"] == counted[event["key"]], f"lost update: {event}"
        accepted = set(self._accepted.read_text().split())
        assert accepted <= seen, f"accepted and lost: {sorted(accepted - seen)[:5]}"


async def _events(client: WaltzClient, partition: int) -> list[dict[str, Any]]:
    mark = await client.high_water_mark(partition)
    found: list[dict[str, Any]] = []
    if mark >= 0:
        async for batch in client.feed_batches(partition):
            found += [json.loads(transaction.data) for transaction in batch]
            if batch[-1].transaction_id >= mark:
                break
    return found


def _run(directory: Path, *, kills: int, intents: int, faults: int, in_doubt: int) -> None:
    with LocalCluster(directory / "cluster", partitions=2, servers=2, session_timeout_s=2.0) as cluster:
        run = Kills(cluster, directory, seed=kills)
        run.run(kills, intents, faults)
        cluster.wait_ready()
        run.check()
        assert run.in_doubt_found >= in_doubt, "killed between send and answer too rarely to show anything"


@pytest.mark.timeout(240)
def test_a_killed_service_and_a_failing_log_lose_and_repeat_no_intent(tmp_path: Path) -> None:
    _run(tmp_path, kills=6, intents=300, faults=2, in_doubt=2)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_hundred_kills_of_a_service_lose_and_repeat_none_of_ten_thousand_intents(tmp_path: Path) -> None:
    _run(tmp_path, kills=100, intents=10_000, faults=20, in_doubt=30)
