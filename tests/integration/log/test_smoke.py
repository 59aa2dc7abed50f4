"""A cut of the smoke test: real processes, killed and stopped at five times the original's rate, under sixteen clients. `make smoke` is the whole."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from verification.smoke.checks import judge
from verification.smoke.history import Reported, SmokeHistory
from verification.smoke.plan import SmokePlan
from verification.smoke.run import Report, run

pytestmark = [pytest.mark.long, pytest.mark.timeout(290)]

PLAN = SmokePlan(seed=5, transactions=0, seconds=28, pace=2.5, session_timeout_s=2)

COMMITTED_MIN = 5_000
"""Of a machine that does much else. An idle one commits a hundred thousand."""


def _living() -> set[str]:
    """Command lines of this user's processes."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                found.add((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
            except OSError:
                continue  # ended meanwhile
    return found


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    directory = tmp_path_factory.mktemp("smoke")
    lines: list[str] = []
    found = run(PLAN, directory, lines.append)
    print("\n".join(lines))
    assert not [command for command in _living() if str(directory) in command], "processes are left"
    return found


def test_every_append_is_committed_once_when_any_process_is_killed(report: Report) -> None:
    assert report.wrong == []
    assert report.committed >= COMMITTED_MIN
    assert report.healed_s < PLAN.heal_s
    killed = {what.split()[1] for what in report.outages if what.startswith("killed")}
    assert {name.partition("-")[0] for name in killed} == {"zookeeper", "server", "storage"}
    assert report.killed >= 8
    assert report.stopped >= 1


def _lose(history: SmokeHistory) -> None:
    """The log without its last transaction."""
    log = next(log for log in history.logs.values() if log.number)
    for column in (log.transaction_id, log.client, log.number, log.mark, log.request, log.generation, log.chain):
        column.pop()


def _double(history: SmokeHistory) -> None:
    """One transaction in the place of another as well."""
    log = next(log for log in history.logs.values() if len(log.number) > 10)
    log.client[10], log.number[10], log.request[10] = log.client[4], log.number[4], log.request[4]


def _violate(history: SmokeHistory) -> None:
    """The oldest mark for a transaction that checked a lock, when others had written it."""
    for log in history.logs.values():
        written: set[int] = set()
        first = 0
        for at in range(len(log.number)):
            write, read, append = log.lock_counts[3 * at : 3 * at + 3]
            end = first + write + read + append
            if written & set(log.locks[first : first + write + read]):
                log.mark[at] = -1
                return
            written |= {*log.locks[first : first + write], *log.locks[end - append : end]}
            first = end
    raise AssertionError("no lock was used twice")


def _deny(history: SmokeHistory) -> None:
    """A client that learned the opposite."""
    client = next(client for client in history.clients if Reported.COMMITTED in client.reported)
    client.reported[client.reported.index(Reported.COMMITTED)] = Reported.NOT_APPENDED


@pytest.mark.parametrize(
    ("spoil", "notices"),
    [
        (_lose, "nothing_is_lost"),
        (_double, "nothing_is_doubled"),
        (_violate, "locks_are_serializable"),
        (_deny, "nothing_is_there_that_was_denied"),
    ],
    ids=lambda each: each if isinstance(each, str) else each.__name__,
)
def test_errors_planted_in_the_history_of_a_run_are_noticed(report: Report, spoil: Callable[[SmokeHistory], None], notices: str) -> None:
    history = copy.deepcopy(report.history)
    spoil(history)
    assert any(wrong.startswith(f"{notices}:") for wrong in judge(history))
