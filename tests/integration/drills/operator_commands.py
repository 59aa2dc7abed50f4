"""What the drills share: the command line as an operator types it, appends, and the whole log of a partition."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import CompletedProcess

from tests.integration import in_process
from waltz_log.client import Draft, Receipt, SyncWaltzClient
from waltz_log.processes.local_cluster import LocalCluster

__all__ = ["COMMAND", "TIMEOUT_S", "append", "log_of", "refused", "until", "waltz"]

TIMEOUT_S = 90.0
COMMAND = (sys.executable, "-P", "-m", "waltz_log.cli")


def waltz(*arguments: str | Path) -> str:
    """The output of a command that must succeed."""
    done = _run(arguments)
    assert done.returncode == 0, f"{' '.join(map(str, arguments))}: {done.stdout}{done.stderr}"
    return done.stdout


def refused(*arguments: str | Path) -> str:
    """The output and error of a command that must fail."""
    done = _run(arguments)
    assert done.returncode != 0, done.stdout
    return done.stdout + done.stderr


def _run(arguments: Sequence[str | Path]) -> CompletedProcess[str]:
    return in_process.waltz(*map(str, arguments))


def append(cluster: LocalCluster, prefix: str, count: int = 100, partition: int = 0) -> list[bytes]:
    """Appends so many transactions and returns their data; all are acknowledged."""
    data = [f"{prefix} {number}".encode() for number in range(count)]
    with SyncWaltzClient(cluster.cluster) as client:
        outcomes = client.append_many(partition, [Draft(each) for each in data], timeout_s=TIMEOUT_S)
    assert all(isinstance(outcome, Receipt) for outcome in outcomes)
    return data


def log_of(address: str, partition: int = 0) -> list[bytes]:
    """Everything that is committed."""
    found: list[bytes] = []
    with SyncWaltzClient(address) as client:
        last = client.high_water_mark(partition)
        if last < 0:
            return []
        for expected, transaction in enumerate(client.feed(partition, after=-1)):
            assert transaction.transaction_id == expected
            found.append(transaction.data)
            if transaction.transaction_id == last:
                return found
    raise AssertionError("the feed ended")


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)
