"""What is wrong on a command line, in a setting or in a call is reported in a sentence that a person can act on, never as a dump of fields."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from waltz_log.cli.main import run
from waltz_log.client import ClientSettings, SyncWaltzClient
from waltz_log.errors import InvalidRequest, InvalidSetting
from waltz_log.exit_codes import USAGE

DUMPED = re.compile(r"\b(reason|name|nearest)=(?!value|NAME|DIRECTORY)")

MISUSES = {
    "read {here}": "--topic or --partition is required",
    "append {here} x --key k": "--key is for topics: --topic namespace/name",
    "append {here} x --partition 0 --delete": "--delete needs --key, and cannot be combined with data",
    "read nowhere --partition 0": "cluster has no host and port: 'nowhere', wanted host:port[,host:port] of log servers",
    "read zk:2181/waltz --partition 0": "cluster is the address of a coordinator: 'zk:2181/waltz', clients need log servers, host:port[,host:port]; "
    "only nodes and operators use `coordinator`",
    "cluster status log1:5101": "coordinator is the address of log servers: 'log1:5101', nodes and operators need ZooKeeper, "
    "host:port[,host:port]/root; only clients use `cluster`",
    "cluster status {here} --output tabel": "--output is table, json or yaml, not 'tabel' (did you mean table?)",
    "server": "coordinator is required",
    "server --coordinator {here} --log-level infos": "infos: no such log level (did you mean info?)",
    "server --config {file}": "session_timeout: no such setting (did you mean session_timeout_s?)",
    "server --config {confused}": "cluster: no such setting (did you mean coordinator?)",
    "server --config {missing}": "{missing} cannot be read: No such file or directory",
    "storage --coordinator {here} --name a/b --directory x": "name must match pattern '^[A-Za-z0-9._-]+$', not 'a/b'",
    "server --coordinator {here} --listen 0.0.0.0:5101": "listen is a wildcard, at which no other machine reaches the node: name a host or an "
    "address of this machine, not '0.0.0.0:5101'",
    "storage --coordinator {here} --name a --directory x --listen [fe80::1%eth0]:5001": "listen is a link-local address, at which no other machine "
    "reaches the node: name a host or an address of this machine, not '[fe80::1%eth0]:5001'",
    "storage verify {missing}": "directory must be an existing directory, not {missing}",
    "storage --name a verify {missing}": "verify has its own options, after its name, and none of a node's",
    "zookeeper --listen 2181": "listen must be host:port, not '2181'",
    "access grant {here} spiffe://x/application/a append shop": "resource must be *, NAMESPACE/TOPIC or log, with :FIRST-LAST for some "
    "partitions and * at the end of a name, got 'shop'",
    "access grant {here} spiffe://x/application/a apend shop/orders": "apend: no such operation (did you mean append?)",
    "access reset {here}": "every application could append to and read everything afterwards: repeat with --yes if that is intended",
    "topic alter-policy {here} a/b": "--policy is required: name=value",
    "topic create {here} a/b --policy retention": "--policy must be name=value, with each name once, got 'retention'",
    "cluster adopt {here} x --name y": "node must be NAME=DIRECTORY or NAME=FILE, not 'x'",
    "cluster replica replace {here} 0 a a": "a replica cannot replace itself: a",
}


@pytest.mark.parametrize("line", MISUSES)
def test_a_misuse_of_the_command_is_reported_in_a_sentence(line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "server.yaml"
    file.write_text("coordinator: here:1/x\nsession_timeout: 3\n")
    confused = tmp_path / "confused.yaml"
    confused.write_text("cluster: log1:5101\n")
    places = {"here": "127.0.0.1:1/x", "file": str(file), "confused": str(confused), "missing": str(tmp_path / "missing")}
    arguments = [each.format(**places) for each in line.split()]
    assert run(arguments) == USAGE
    reported = capsys.readouterr().err
    assert reported.rstrip("\n") == f"waltz: {MISUSES[line].format(**places)}"
    assert DUMPED.search(reported) is None


def test_a_setting_out_of_bounds_says_what_it_must_be_and_what_it_was() -> None:
    with pytest.raises(InvalidSetting, match=r"^max_pending must be greater than or equal to 1, not 0$"):
        ClientSettings(max_pending=0)
    with pytest.raises(InvalidSetting, match=r"^linger_ms must be a valid number, unable to parse string as a number, not 'long'$"):
        ClientSettings.load(None, prefix="W", environment={}, linger_ms="long")


def test_a_call_with_a_wrong_argument_says_it_in_a_sentence() -> None:
    with pytest.raises(InvalidRequest) as refused:
        SyncWaltzClient("nowhere")
    assert str(refused.value) == "cluster has no host and port: 'nowhere', wanted host:port[,host:port] of log servers"
