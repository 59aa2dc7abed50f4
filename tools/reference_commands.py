"""docs/reference/commands.md, the page of all commands of `waltz`.

Help, arguments and options are read from the commands, examples from `waltz_log.cli.examples`; a test parses each with the command that it shows.
"""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args
from unittest.mock import patch

import typer

from waltz_log.cli.examples import EXAMPLES
from waltz_log.cli.main import root_command
from waltz_log.cli.profiles import Kind

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "commands.md"
COLUMNS = 150
CLUSTER, COORDINATOR = "log1:5101", "zk1:2181/waltz/main"
VARIABLES = {"$CLUSTER": CLUSTER, "$COORDINATOR": COORDINATOR, "$WALTZ_CLUSTER": CLUSTER, "$WALTZ_COORDINATOR": COORDINATOR}
"""What shell variables of examples stand for."""

INTRODUCTION = """\
# Commands

Generated from the commands by `make reference`. `waltz COMMAND --help` shows the same.

In the examples, the variables `CLUSTER` and `COORDINATOR` have an address of the cluster:

| address | example | commands |
|---|---|---|
| `CLUSTER`: log servers | `log1:5101,log2:5101` | {of_cluster} |
| `COORDINATOR`: ZooKeeper and the path of the cluster; for operators | `zk1:2181,zk2:2181/waltz/main` | {of_coordinator} |

Other commands need no address. The argument may be left out: an option, a variable or a profile
[names the cluster](../guides/command_line.md#name-the-cluster-once) too.
Storage nodes and log servers also read [settings](settings.md) from files and the environment. A command that fails prints one line on stderr
and ends with an [exit code](errors.md#exit-codes). With `--output json` or `--output yaml`, commands
print for programs.

{index}
"""


def page() -> str:
    found = list(commands())
    index = "\n".join(f"- [`waltz {name}`](#{anchor(name)}): {_first_sentence(command)}" for name, command in found)
    addressed = {f"of_{kind}": ", ".join(f"`{name}`" for name, command in found if _address(command) == kind) for kind in get_args(Kind)}
    return INTRODUCTION.format(index=index, **addressed) + "".join(f"\n{_described(name, command)}" for name, command in found)


def commands() -> Iterator[tuple[str, Any]]:
    """Each command that can run, with its words after `waltz`."""
    yield from _below("", root_command())


def _address(command: Any) -> str:
    """`cluster` or `coordinator`, if that is the first argument of the command."""
    arguments = [each.name for each in command.params if each.param_type_name == "argument"]
    return arguments[0] if arguments and arguments[0] in get_args(Kind) else ""


def parse(words: list[str]) -> None:
    """Raises `TyperException` where the words after `waltz` are no command, or not its arguments and options. Runs nothing. An address that is left
    out counts as given by its variable."""
    command, name = root_command(), "waltz"
    words = [VARIABLES.get(word, word) for word in words]
    while isinstance(command, typer.core.TyperGroup) and words:
        below = command.get_command(typer.Context(command), words[0])
        if below is None:
            break
        command, name, words = below, f"{name} {words[0]}", words[1:]
    with patch.dict(os.environ, {"WALTZ_CLUSTER": CLUSTER, "WALTZ_COORDINATOR": COORDINATOR}):
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
