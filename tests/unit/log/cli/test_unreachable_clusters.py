"""A cluster that does not answer, and one that was never created: every command ends with one sentence and an exit code, never with a stack trace."""

from __future__ import annotations

import socket
from collections.abc import Iterator

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
    "cluster replicas list {}",
    "cluster replicas add {} all storage-0",
    "selftest {}",
]


@pytest.fixture
def silent() -> Iterator[str]:
    """An address at which nothing answers, though connections are accepted."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}/waltz/x"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_cluster_that_does_not_answer_is_one_sentence(command: str, silent: str, capfd: pytest.CaptureFixture[str]) -> None:
    address = silent.partition("/")[0] if command.split()[0] in ("read", "tail", "lag", "trace", "topic") else silent
    assert run([*command.format(address).split(), "--timeout", "0.2"]) == UNAVAILABLE
    out, err = capfd.readouterr()
    assert out == ""
    assert err.splitlines()[-1].startswith("waltz: cluster unavailable: ")
    assert "Traceback" not in err
