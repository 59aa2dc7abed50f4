"""Runs the smoke test: a local cluster, the processes with the clients, and the outages; then everything heals, and the history is checked. Every
step has a limit: the plan's seconds for the load, `heal_s` for each step after it. Leaves no process behind, however it ends.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from verification.smoke.checks import judge
from verification.smoke.clients import SETTINGS, command, history_file, marks_file, progress_file
from verification.smoke.history import ClientHistory, PartitionLog, SmokeHistory
from verification.smoke.nemesis import Nemesis
from verification.smoke.plan import SmokePlan
from verification.smoke.replicas import digests
from verification.smoke.schedule import outages
from waltz_log.client import ClientSettings, WaltzClient
from waltz_log.coordination.coordinator import ZooKeeperCoordinator
from waltz_log.errors import Unavailable
from waltz_log.processes.children import Processes
from waltz_log.processes.local_cluster import LocalCluster
from waltz_log.transport.grpc import GrpcNetwork

__all__ = ["Report", "run"]

POLL_EVERY_S = 0.1
REPORT_EVERY_S = 5.0


@dataclass(frozen=True)
class Report:
    """`wrong` is empty if every check passed. `healed_s`: the time from the last outage until all processes served again."""

    plan: SmokePlan
    committed: int
    attempts: int
    load_s: float
    healed_s: float
    killed: int
    stopped: int
    ended_by_themselves: int
    outages: dict[str, int]
    wrong: list[str]
    history: SmokeHistory

    def __str__(self) -> str:
        lines = [
            f"{self.committed:,} committed, {self.attempts:,} attempts, in {self.load_s:.0f} s of outages and until everything served again",
            f"{self.killed} times a process was killed and {self.stopped} times stopped; {self.ended_by_themselves} ended by themselves",
            f"everything served again {self.healed_s:.1f} s after the last outage",
            *self.wrong,
            "nothing lost, nothing doubled, locks serializable, replicas identical" if not self.wrong else f"{len(self.wrong)} things are wrong",
        ]
        return "\n".join(lines)


class _Clients:
    """The processes that the clients are in."""

    def __init__(self, cluster: str, plan: SmokePlan, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._plan = plan
        self._directory = directory
        self._processes = Processes(directory / "logs")
        self._names = [f"clients-{worker}" for worker in range(plan.workers)]
        for worker, name in enumerate(self._names):
            self._processes.start(name, command(sys.executable, cluster, plan, directory, worker))

    def progress(self) -> tuple[int, int, bool, bool]:
        """How many are committed, with how many attempts, whether all have done their share, whether all are at rest."""
        reported = []
        for worker in range(self._plan.workers):
            try:
                reported.append(json.loads(progress_file(self._directory, worker).read_text()))
            except FileNotFoundError:
                reported.append({"committed": 0, "attempts": 0, "done": False, "settled": False})
        return (
            sum(each["committed"] for each in reported),
            sum(each["attempts"] for each in reported),
            all(each["done"] for each in reported),
            all(each["settled"] for each in reported),
        )

    def expect_alive(self) -> None:
        for name, code in self._processes.ended().items():
            raise Unavailable(reason=f"{name} ended with code {code}: {self._processes.last_words(name)}")

    def stop_load(self) -> None:
        for name in self._names:
            self._processes.signal(name, signal.SIGTERM)

    def finish(self, marks: dict[int, int]) -> list[ClientHistory]:
        """The clients read their feeds up to the marks and end."""
        new = marks_file(self._directory).with_suffix(".new")
        new.write_text(json.dumps([marks[partition] for partition in range(self._plan.partitions)]))
        new.replace(marks_file(self._directory))
        for name in self._names:
            code = self._processes.wait(name, self._plan.heal_s + 30)
            if code != 0:
                raise Unavailable(reason=f"{name} ended with code {code}: {self._processes.last_words(name)}")
        return [ClientHistory.load(history_file(self._directory, client)) for client in range(self._plan.clients)]

    def close(self) -> None:
        self._processes.close()


def run(plan: SmokePlan, directory: Path, announce: Callable[[str], None]) -> Report:
    """`directory` must be empty, and holds everything; `announce` is called with a line every few seconds. Raises `Unavailable` if the cluster or
    a client does not come to an end."""
    with LocalCluster(
        directory / "cluster",
        partitions=plan.partitions,
        storages=plan.storages,
        servers=plan.servers,
        session_timeout_s=plan.session_timeout_s,
    ) as cluster:
        schedule = outages(plan.seed, servers=cluster.server_names, storages=cluster.storage_names, rate=plan.rate, pace=plan.pace)
        nemesis = Nemesis(cluster, schedule)
        clients = _Clients(cluster.cluster, plan, directory / "clients")
        try:
            load_s = _load(plan, clients, nemesis, announce)
            began_s = time.monotonic()
            nemesis.heal(plan.heal_s, announce)
            healed_s = time.monotonic() - began_s
            clients.stop_load()
            _wait_settled(plan, clients)
            committed, attempts, _, _ = clients.progress()
            announce("reading the log")
            logs = asyncio.run(_read(cluster.cluster, plan))
            marks = {partition: len(log.number) - 1 for partition, log in logs.items()}
            reported = clients.finish(marks)
            announce("comparing the replicas")
            replicas = asyncio.run(_replicas(cluster.coordinator, marks, plan.heal_s))
        finally:
            clients.close()
    announce("judging")
    history = SmokeHistory(reported, logs, replicas)
    wrong = judge(history)
    if committed < plan.transactions:
        wrong.append(f"only {committed:,} of {plan.transactions:,} transactions were committed within {plan.seconds:g} s")
    done = nemesis.done
    return Report(
        plan=plan,
        committed=committed,
        attempts=attempts,
        load_s=load_s,
        healed_s=healed_s,
        killed=sum(count for what, count in done.items() if what.startswith("killed")),
        stopped=sum(count for what, count in done.items() if what.startswith("stopped")),
        ended_by_themselves=nemesis.ended_by_itself.total(),
        outages=dict(done),
        wrong=wrong,
        history=history,
    )


def _load(plan: SmokePlan, clients: _Clients, nemesis: Nemesis, announce: Callable[[str], None]) -> float:
    """Outages until every client has done its share or time is up; how long that was."""
    began_s = time.monotonic()
    reported_s, reported_committed = 0.0, 0
    while True:
        now_s = time.monotonic() - began_s
        clients.expect_alive()
        committed, attempts, done, _ = clients.progress()
        if done or now_s > plan.seconds:
            return now_s
        nemesis.advance(now_s)
        if now_s - reported_s >= REPORT_EVERY_S:
            rate = (committed - reported_committed) / (now_s - reported_s)
            of = f" of {plan.transactions:,}" if plan.transactions else ""
            away = f", away: {' '.join(nemesis.away)}" if nemesis.away else ""
            announce(
                f"{now_s:4.0f} s  {committed:>9,}{of} committed, {rate:7,.0f} a second, {attempts:,} attempts, {nemesis.done.total()} outages{away}"
            )
            reported_s, reported_committed = now_s, committed
        time.sleep(POLL_EVERY_S)


def _wait_settled(plan: SmokePlan, clients: _Clients) -> None:
    """Waits until every attempt is decided: by its deadline at the latest, and then by a query to the log."""
    bound_s = SETTINGS.append_timeout_s + plan.heal_s
    deadline = time.monotonic() + bound_s
    while not clients.progress()[3]:
        clients.expect_alive()
        if time.monotonic() > deadline:
            raise Unavailable(reason=f"12: clients are not at rest {bound_s:g} s after the last outage")
        time.sleep(POLL_EVERY_S)


async def _read(cluster: str, plan: SmokePlan) -> dict[int, PartitionLog]:
    logs = {}
    async with WaltzClient.open(cluster, ClientSettings()) as client:
        for partition in range(plan.partitions):
            log = logs[partition] = PartitionLog()
            mark = await client.high_water_mark(partition)
            if mark < 0:
                continue
            batches = client.feed_batches(partition)
            async for batch in batches:
                for transaction in batch:
                    log.add(transaction)
                if log.transaction_id[-1] >= mark:
                    break
            await batches.aclose()
    return logs


async def _replicas(cluster: str, marks: dict[int, int], within_s: float) -> dict[int, dict[str, str]]:
    coordinator = await ZooKeeperCoordinator.connect(cluster)
    try:
        return await digests(coordinator, GrpcNetwork(), marks, within_s)
    finally:
        await coordinator.close()
