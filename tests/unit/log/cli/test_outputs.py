"""Each command that shows or changes something prints for programs too, with `--output json`. A new command without it fails here."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tools.reference_commands import commands
from waltz_log.cli.access import access
from waltz_log.cli.main import run
from waltz_log.cli.printing import print_result
from waltz_log.cli.topics import topics
from waltz_log.core.ports import Coordinator, Network
from waltz_log.exit_codes import FAILED, OK, USAGE
from waltz_log.filesystem import FileSystemDisk
from waltz_log.journal import Journal, JournalSettings
from waltz_log.testing import InMemoryCluster

PROCESSES = {"zookeeper", "server", "storage", "dev", "console"}
"""They serve, and print log events."""

JSON_ALWAYS = {"storage describe", "journal export", "pipeline schema"}
"""Their output is JSON, for another command or an editor."""


def test_each_command_has_an_output_for_programs() -> None:
    without = {name for name, command in commands() if all(each.name != "output" for each in command.params)}
    assert without == PROCESSES | JSON_ALWAYS


@pytest.mark.parametrize("name", [name for name, _ in commands() if name not in PROCESSES | JSON_ALWAYS])
def test_an_unknown_output_is_refused_before_anything_is_done(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """So the option is passed on, and not only declared."""
    monkeypatch.setenv("WALTZ_CLUSTER", "127.0.0.1:1")
    monkeypatch.setenv("WALTZ_COORDINATOR", "127.0.0.1:1/x")
    command = dict(commands())[name]
    words = [*name.split(), "--output", "jsn"]
    for each in command.params:
        number = each.param_type_name != "argument" and "int" in str(getattr(each, "type_descriptor", ""))
        value = "1" if number or each.name in ("partition", "transaction", "partitions", "dead") else "a"
        if each.name in ("cluster", "coordinator", "output"):
            continue
        if each.param_type_name == "argument" and each.required:
            words.append(value)
        elif each.required:
            words += [each.opts[0], value]
    assert run(words) == USAGE
    assert "--output is table, json or yaml, not 'jsn' (did you mean json?)" in capsys.readouterr().err


def test_a_result_is_lines_or_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    print_result({"a": 1}, ["one\x1b", "two"], "table")
    assert capsys.readouterr().out == "one\\x1b\ntwo\n"
    print_result({"a": [1]}, ["one"], "json")
    assert json.loads(capsys.readouterr().out) == {"a": [1]}
    print_result({"a": [1]}, ["one"], "yaml")
    assert capsys.readouterr().out == "a:\n- 1\n"


def document(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What the command printed, among the log lines of the nodes."""
    out = capsys.readouterr().out
    found: dict[str, Any] = json.JSONDecoder().raw_decode(out[out.index("{\n") :])[0]
    return found


# ---- commands that change something ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
async def cluster(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], reached_in: Callable[[InMemoryCluster], Any]
) -> AsyncIterator[InMemoryCluster]:
    async with InMemoryCluster(partitions=4, storages=1, servers=1) as made:

        @asynccontextmanager
        async def connected(address: str, timeout_s: float) -> AsyncIterator[tuple[Coordinator, Network]]:
            yield made.ensemble.session(), made.network

        monkeypatch.setattr(topics, "reached", reached_in(made))
        monkeypatch.setattr(access, "connected", connected)
        client = await made.client()
        for partition in range(4):
            await client.high_water_mark(partition)
        capsys.readouterr()
        yield made


CREATED: dict[str, Any] = {
    "partitions": 2,
    "type": "regular",
    "keyed": False,
    "properties": [],
    "policies": [],
    "log_partitions": None,
    "existing": None,
    "discards": None,
}


async def test_topics_are_created_altered_and_deleted_with_a_document(cluster: InMemoryCluster, capsys: pytest.CaptureFixture[str]) -> None:
    usual: dict[str, Any] = {"output": "json", "timeout_s": 10.0}
    for dry_run in (True, False):
        assert await topics.create("", "shop/orders", dry_run=dry_run, **CREATED, **usual) == OK
        made = document(capsys)
        assert (made["topic"], made["dry_run"], len(made["log_partitions"])) == ("shop/orders", dry_run, 2)
    assert await topics.alter_policy("", "shop/orders", ["retention_ms=7200000"], dry_run=False, **usual) == OK
    assert document(capsys) == {
        "topic": "shop/orders",
        "dry_run": False,
        "policies": {"retention_ms": {"from": 604800000, "to": 7200000}},
        "warnings": [],
    }
    assert await topics.delete("", "shop/orders", dry_run=False, **usual) == OK
    assert document(capsys) == {"topic": "shop/orders", "dry_run": False, "deleted": True, "log_partitions": made["log_partitions"]}


async def test_a_topic_without_a_number_of_partitions_says_what_it_got(cluster: InMemoryCluster, capsys: pytest.CaptureFixture[str]) -> None:
    """Of four log partitions: two, then one. Creating the first again changes nothing."""
    wanted = CREATED | {"partitions": None, "dry_run": False, "output": "table", "timeout_s": 10.0}
    for name, line in (
        ("shop/orders", "partitions=2: half of the 4 log partitions that no topic uses; --partitions sets another number"),
        ("shop/returns", "partitions=1: half of the 2 log partitions that no topic uses"),
        ("shop/orders", "partitions=2: as the topic has, which exists"),
    ):
        assert await topics.create("", name, **wanted) == OK
        assert line in capsys.readouterr().out


async def test_rules_are_granted_revoked_and_reset_with_a_document(cluster: InMemoryCluster, capsys: pytest.CaptureFixture[str]) -> None:
    usual: dict[str, Any] = {"output": "json", "timeout_s": 10.0}
    who = "spiffe://waltz/application/orders"
    assert await access.grant("", who, "append,read", ["log:0-3"], dry_run=False, **usual) == OK
    granted = document(capsys)
    assert granted["granted"] == [{"principal": who, "operations": ["append", "read"], "resource": "log:0-3"}]
    assert (granted["dry_run"], granted["confirmed"], granted["first_rule"]) == (False, True, True)
    assert await access.check("", who, "append", "log:9", role=None, **usual) == FAILED
    assert document(capsys)["permitted"] is False
    assert await access.revoke("", who, None, [], dry_run=True, **usual) == OK
    planned = document(capsys)
    assert planned["revoked"] == {"principal": who, "operations": None, "resources": None}
    assert (planned["dry_run"], planned["confirmed"]) == (True, False)
    assert await access.reset("", confirmed=True, **usual) == OK
    assert document(capsys)["removed"] == "all"


def test_certificates_are_made_with_a_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["certificate", "create", str(tmp_path / "ca"), "node/storage-0", "--output", "json"]) == OK
    made = document(capsys)
    (certificate,) = made["certificates"]
    assert (certificate["role"], certificate["name"]) == ("node", "storage-0")
    assert all(Path(each).is_file() for each in (made["authorities"], certificate["certificate"], certificate["key"]))


def test_a_journal_is_filled_and_compacted_with_a_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Journal.open(FileSystemDisk(tmp_path / "old"), JournalSettings()):
        pass
    source = tmp_path / "lines"
    assert run(["journal", "export", str(tmp_path / "old"), "--to", str(source)]) == OK
    folder = str(tmp_path / "journal")
    assert run(["journal", "import", folder, "--from", str(source), "--output", "json"]) == OK
    assert document(capsys) == {"records": 0, "transactions": 0, "directory": folder}
    assert run(["journal", "compact", folder, "--output", "json"]) == OK
    assert document(capsys)["records"] == 0
