"""A cluster that does not answer, and one that was never created: every command ends with one sentence and an exit code, never with a stack trace."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from waltz_log.cli.main import run
from waltz_log.exit_codes import UNAVAILABLE

COMMANDS = [
    "read {} --partition 0 --from-time 1h",
    "tail {}",
    "lag {}",
    "trace {} --partition 0 --transaction 0",
    "topic list {}",
    "topic describe {} a/b",
    "topic create {} a/b",
    "topic alter-policy {} a/b --policy retention_ms=-1",
    "topic delete {} a/b",
    "drain {} storage-0",
    "drain {} storage-0 --undo",
    "rebalance {} --dry-run",
    "owner move {} 0-3 1",
    "owner release {} all",
    "cluster status {}",
    "cluster replica list {}",
    "cluster replica add {} all storage-0",
    "selftest {}",
]


@pytest.fixture
def silent() -> Iterator[str]:
    """An address at which nothing answers, though connections are accepted."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}/waltz/x"


def _asks_servers(command: str) -> bool:
    return command.split()[0] in ("read", "tail", "lag", "trace", "topic")


@pytest.mark.parametrize("command", [each for each in COMMANDS if not _asks_servers(each)])
def test_a_coordinator_that_does_not_answer_is_one_sentence(command: str, silent: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run([*command.format(silent).split(), "--timeout", "0.2"]) == UNAVAILABLE
    _expect_one_sentence(*capfd.readouterr())


def test_log_servers_that_do_not_answer_are_one_sentence(silent: str) -> None:
    """Each command in a process of its own, as for a user: the events of gRPC's loop reach the loop of the next test."""
    address = silent.partition("/")[0]
    commands = [
        [sys.executable, "-m", "waltz_log.cli", *each.format(address).split(), "--timeout", "0.2"] for each in COMMANDS if _asks_servers(each)
    ]
    with ThreadPoolExecutor(2) as pool:
        for ended in pool.map(lambda command: subprocess.run(command, capture_output=True, text=True, timeout=60, check=False), commands):
            assert ended.returncode == UNAVAILABLE, ended
            _expect_one_sentence(ended.stdout, ended.stderr)


def _expect_one_sentence(out: str, err: str) -> None:
    assert out == ""
    assert err.splitlines()[-1].startswith("waltz: cluster unavailable: ")
    assert "Traceback" not in err
