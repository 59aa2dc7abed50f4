"""Names of topics in the shell: from the cluster of the line, and silence where it does not answer."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from tools.reference_commands import commands
from waltz_log.cli import connecting, topic_completion
from waltz_log.cli.main import run
from waltz_log.cli.topic_completion import complete_topics, line_address
from waltz_log.errors import ClusterUnavailable
from waltz_log.exit_codes import OK

WALTZ = Path(sys.executable).with_name("waltz")
PARAMETERS = [("topic describe", "name"), ("topic delete", "name"), ("topic alter-policy", "name"), ("lag", "topic")]
PARAMETERS += [(name, "topic") for name in ("append", "read", "tail")]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that were asked, of clusters with three topics."""
    found: list[str] = []

    @asynccontextmanager
    async def reached(address: str, timeout_s: float) -> AsyncIterator[Any]:
        found.append(address)
        topics = {number: SimpleNamespace(name=name) for number, name in enumerate(("shop/orders", "lab/samples", "shop/accounts"))}
        yield SimpleNamespace(catalogue=SimpleNamespace(topics=topics))

    monkeypatch.setattr(connecting, "reached", reached)
    monkeypatch.setenv("WALTZ_CLUSTER", "env:1")
    return found


def test_names_of_topics_are_completed_in_order(asked: list[str]) -> None:
    assert complete_topics("shop/") == ["shop/accounts", "shop/orders"]
    assert complete_topics("none") == []
    assert asked == ["env:1", "env:1"]


@pytest.mark.parametrize(("command", "parameter"), PARAMETERS)
def test_each_command_with_a_topic_completes_it(command: str, parameter: str, asked: list[str]) -> None:
    found = dict(commands())[command]
    place = next(each for each in found.params if each.name == parameter)
    items = place.shell_complete(typer.Context(found), "lab")
    assert [item.value for item in items] == ["lab/samples"]


@pytest.mark.parametrize(
    ("line", "address"),
    [
        ("waltz topic describe log1:5101 sh", "log1:5101"),
        ("waltz topic describe $NEAR sh", "near:1"),
        ('waltz topic describe "$NEAR" sh', "near:1"),
        ("waltz read --cluster=log1:5101 --topic sh", "log1:5101"),
        ("waltz read -C log1:5101 --topic sh", "log1:5101"),
        ("waltz read --topic sh", "env:1"),
    ],
)
def test_the_cluster_of_the_line_is_asked(line: str, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEAR", "near:1")
    assert line_address({"COMP_WORDS": line, "WALTZ_CLUSTER": "env:1"}) == address


def test_an_error_completes_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    async def failing(address: str) -> list[str]:
        print("a log line", file=sys.stderr)
        raise ClusterUnavailable(address=address, reason="planted")

    monkeypatch.setattr(topic_completion, "_topics", failing)
    monkeypatch.setenv("WALTZ_CLUSTER", "env:1")
    assert complete_topics("a") == []
    monkeypatch.setenv("WALTZ_PROFILES", "/nowhere/profiles.yaml")
    monkeypatch.delenv("WALTZ_CLUSTER")
    assert complete_topics("a") == []
    assert capsys.readouterr() == ("", "")


def test_a_cluster_that_does_not_answer_is_silent_and_soon_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        line = f"waltz topic describe 127.0.0.1:{server.getsockname()[1]} "
        variables = {"_WALTZ_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": "4"}
        began = time.monotonic()
        done = subprocess.run([WALTZ], env=os.environ | variables, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.strip(), done.stderr) == ("", "")
    assert time.monotonic() - began < 20, "a second for the cluster, and the start of the process"


@pytest.mark.parametrize("name", ["", "topic", *(name for name, _ in commands())])
def test_h_shows_the_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*name.split(), "--help"]) == OK
    long = capsys.readouterr().out
    assert run([*name.split(), "-h"]) == OK
    assert capsys.readouterr().out == long
    assert "Usage: " in long
