"""docs/reference/commands.md, the page of all commands of `waltz`.

Help, arguments and options are read from the commands. The examples are here; a test parses each with the command that it shows.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from waltz_log.cli.main import app

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "commands.md"
COLUMNS = 150

INTRODUCTION = """\
# Commands

Generated from the commands by `make reference`. `waltz COMMAND --help` shows the same.

`CLUSTER` is the connection string of a cluster: the addresses of ZooKeeper and the path of the cluster, `zk1:2181,zk2:2181/waltz/main`.
Storage nodes and log servers also read [settings](settings.md) from files and the environment. A command that fails prints one line on stderr
and ends with an [exit code](errors.md#exit-codes). With `--output json`, commands print JSON for programs. The examples assume that the variable
`CLUSTER` is set.

{index}
"""

EXAMPLES = {
    "zookeeper": "waltz zookeeper --directory var/zookeeper --listen 127.0.0.1:2181",
    "server": "waltz server --config conf/server.yaml --listen 10.0.0.5:5101",
    "dev": "waltz dev --directory var/dev --partitions 8",
    "certificates create": "waltz certificates create var/certificates node/storage-0 application/orders --host 10.0.0.5",
    "console": "waltz console $CLUSTER --hide 'payments/*'",
    "doctor": "waltz doctor",
    "append": 'waltz append $CLUSTER --topic shop/orders --key order-7 "2 x tea"',
    "read": "waltz read $CLUSTER --partition 0 --after 41 --limit 10",
    "trace": "waltz trace $CLUSTER --partition 0 --transaction 42",
    "cluster create": "waltz cluster create $CLUSTER --name main --partitions 12 --storages storage-0,storage-1,storage-2",
    "cluster grow": "waltz cluster grow $CLUSTER --partitions 24 --dry-run",
    "cluster adopt": "waltz cluster adopt $CLUSTER storage-0=var/storage-0 storage-1=storage-1.json --name main --missing storage-2",
    "cluster status": "waltz cluster status $CLUSTER --wait 60 --complete",
    "cluster replicas add": "waltz cluster replicas add $CLUSTER 7 storage-3",
    "cluster replicas remove": "waltz cluster replicas remove $CLUSTER 7 storage-0",
    "cluster replicas replace": "waltz cluster replicas replace $CLUSTER 7 storage-0 storage-3",
    "outbox status": "waltz outbox status var/outbox",
    "outbox list": "waltz outbox list var/outbox",
    "outbox retry": """waltz outbox retry var/outbox 17 --arguments '{"seat": "12B", "passenger": "Ada"}'""",
    "outbox drop": "waltz outbox drop var/outbox 17 18",
    "storage": "waltz storage --config conf/storage.yaml --name storage-0 --directory /data/storage-0 --listen 10.0.0.5:5001",
    "storage dump-control-file": "waltz storage dump-control-file var/storage-0 --partition 3",
    "storage dump-segment": "waltz storage dump-segment var/storage-0/3/0000000000000001742.seg --from 1742 --to 1744 --data text",
    "storage verify-segment": "waltz storage verify-segment var/storage-0/3/0000000000000001742.seg",
    "storage verify": "waltz storage verify var/storage-0 --mib-per-s 50",
    "storage segment-statistics": "waltz storage segment-statistics var/storage-0/3",
    "storage copy-partition": "waltz storage copy-partition /mnt/storage-0 var/storage-2 --partition 3",
    "storage describe": "waltz storage describe var/storage-1 > storage-1.json",
    "storage migrate": "waltz storage migrate var/java-storage",
    "storage backup": "waltz storage backup var/storage-0 /mnt/backup/storage-0",
    "storage restore": "waltz storage restore /mnt/backup/storage-0 var/storage-0",
    "journal print": "waltz journal print var/outbox --safe",
    "journal stats": "waltz journal stats var/outbox",
    "journal verify": "waltz journal verify var/outbox",
    "journal export": "waltz journal export var/outbox --to outbox.jsonl",
    "journal import": "waltz journal import var/outbox-new --from outbox.jsonl",
    "journal compact": "waltz journal compact var/outbox",
    "journal measure": "waltz journal measure --directory var --seconds 5",
    "topic create": "waltz topic create $CLUSTER shop/orders --partitions 8 --keyed --policy retention_ms=604800000",
    "topic list": "waltz topic list $CLUSTER --output json",
    "topic describe": "waltz topic describe $CLUSTER shop/orders",
    "topic alter-policy": "waltz topic alter-policy $CLUSTER shop/orders --policy durability=quorum_sync",
    "topic delete": "waltz topic delete $CLUSTER shop/orders --dry-run",
    "subscribers list": "waltz subscribers list $CLUSTER",
    "subscribers remove": "waltz subscribers remove $CLUSTER billing --dry-run",
    "pipeline check": "waltz pipeline check conf/pipelines",
    "pipeline schema": "waltz pipeline schema > pipeline.schema.json",
}


def page() -> str:
    found = list(commands())
    index = "\n".join(f"- [`waltz {name}`](#{anchor(name)}): {_first_sentence(command)}" for name, command in found)
    return INTRODUCTION.format(index=index) + "".join(f"\n{_described(name, command)}" for name, command in found)


def commands() -> Iterator[tuple[str, Any]]:
    """Each command that can run, with its words after `waltz`."""
    yield from _below("", typer.main.get_command(app))


def parse(words: list[str]) -> None:
    """Raises `TyperException` where the words after `waltz` are no command, or not its arguments and options. Runs nothing."""
    command, name = typer.main.get_command(app), "waltz"
    while isinstance(command, typer.core.TyperGroup) and words:
        below = command.get_command(typer.Context(command), words[0])
        if below is None:
            break
        command, name, words = below, f"{name} {words[0]}", words[1:]
    context = command.make_context(name, list(words))
    if isinstance(command, typer.core.TyperGroup) and (context.args or not command.invoke_without_command):
        raise typer.BadParameter(f"{name} has no command {' '.join(words)!r}")


def anchor(name: str) -> str:
    return f"waltz-{name.replace(' ', '-')}"


def _below(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    group = isinstance(command, typer.core.TyperGroup)
    if not group or (command.invoke_without_command and name):
        yield name, command
    if group:
        for each in command.list_commands(typer.Context(command)):
            yield from _below(f"{name} {each}".strip(), command.get_command(typer.Context(command), each))


def _described(name: str, command: Any) -> str:
    parts = [f"## `waltz {name}`\n", _filled(_help(command)), f"\n```sh\n{EXAMPLES.get(name, '')}\n```\n"]
    rows = [row for parameter in command.params if (row := _row(parameter))]
    if rows:
        parts += ["| argument or option | default | meaning |\n|---|---|---|", *rows, ""]
    return "\n".join(parts)


def _help(command: Any) -> str:
    return " ".join(str(command.callback.__doc__ or command.help or "").split())


def _first_sentence(command: Any) -> str:
    return re.split(r"(?<=[.;:]) ", _help(command), maxsplit=1)[0].rstrip(".;:") + "."


def _row(parameter: Any) -> str:
    if parameter.name == "help":
        return ""
    if parameter.param_type_name == "argument":
        many = "..." if parameter.nargs == -1 and not (parameter.metavar or "").endswith("...") else ""
        name = f"`{parameter.metavar or parameter.name.upper()}{many}`"
    else:
        names = sorted(parameter.opts, key=lambda each: each.startswith("--"), reverse=True)
        value = "" if parameter.is_flag else f" {parameter.metavar or _value(parameter)}"
        name = f"`{', '.join(names)}{value}`" + (" (may be repeated)" if parameter.multiple else "")
    default = "**required**" if parameter.required else f"`{parameter.default}`" if parameter.default not in (None, False, [], ()) else ""
    return "| " + " | ".join(_escaped(each) for each in (name, default, " ".join((parameter.help or "").split()))) + " |"


def _value(parameter: Any) -> str:
    return {"int": "NUMBER", "float": "NUMBER", "Path": "PATH"}.get(getattr(parameter.bare_type(), "__name__", ""), "TEXT")


def _filled(text: str) -> str:
    return textwrap.fill(text, COLUMNS, break_long_words=False, break_on_hyphens=False)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")
