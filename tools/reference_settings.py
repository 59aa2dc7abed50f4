"""docs/reference/settings.md, the page of all settings.

Everything on the page but the introductions of its sections is read from the models of settings and from the commands that load them.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo
from typer import Context
from typer.core import TyperOption

from waltz_delta.pipelines.pipeline import PipelineSettings
from waltz_log.cli.main import root_command
from waltz_log.client import ClientSettings, OutboxSettings
from waltz_log.client.sql import SqlSettings
from waltz_log.console.settings import ConsoleSettings
from waltz_log.journal import GroupCommitSettings, JournalSettings
from waltz_log.server import ServerSettings
from waltz_log.settings import Settings
from waltz_log.storage.base.settings import StorageSettings

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "settings.md"
COLUMNS = 150


@dataclass(frozen=True, slots=True)
class Section:
    """A model with what the page says above its table. `options`: the parameters of a command whose options override the file."""

    heading: str
    model: type[Settings]
    introduction: str
    options: tuple[str, ...] = ()


OF_OTHER_NAMES = {"hidden_topics": "hide"}
"""Parameters of commands that are not named as their settings."""

CHOSEN_WHEN_READ: dict[tuple[type[Settings], str], str] = {(PipelineSettings, "name"): "the file's name"}
"""Defaults that depend on the file, so that the model cannot have them."""


def _options(command: str, model: type[Settings]) -> tuple[str, ...]:
    """The arguments and options of the command that override a setting, as they are typed."""
    root = root_command()
    known = {each.name: each for each in root.get_command(Context(root), command).params}
    found = [known[OF_OTHER_NAMES.get(name, name)] for name in model.model_fields if OF_OTHER_NAMES.get(name, name) in known]
    return tuple(max(each.opts, key=len) if isinstance(each, TyperOption) else str(each.metavar or each.name).upper() for each in found)


SECTIONS = [
    Section(
        "Log server",
        ServerSettings,
        "`waltz server --config FILE` reads them from YAML, then from `WALTZ_SERVER_<NAME>`, then from the options of the command.",
        _options("server", ServerSettings),
    ),
    Section(
        "Storage node",
        StorageSettings,
        "`waltz storage --config FILE` reads them from YAML, then from `WALTZ_STORAGE_<NAME>`, then from the options of the command.",
        _options("storage", StorageSettings),
    ),
    Section(
        "Console",
        ConsoleSettings,
        "`waltz console --config FILE` reads them from YAML, then from `WALTZ_CONSOLE_<NAME>`, then from the options of the command.",
        _options("console", ConsoleSettings),
    ),
    Section(
        "Client",
        ClientSettings,
        "An application passes them: `WaltzClient.open(cluster, ClientSettings(append_timeout_s=60))`. `ClientSettings.load` reads a file and the "
        "environment. A limit per partition applies to each partition to which the client appends.",
    ),
    Section("Outbox", OutboxSettings, "An application passes them: `Outbox.over(directory, cluster, OutboxSettings(...))`."),
    Section("Applications on SQL databases", SqlSettings, "An application passes them to `SqlApplication`."),
    Section(
        "Pipeline file",
        PipelineSettings,
        "A pipeline file is YAML; `jobs/ingest.py --pipeline FILE` reads it and `waltz pipeline check FILE` checks it. `${NAME}` and "
        "`${NAME:-default}` insert environment variables. A dot leads into nested settings, `[]` into each entry of a list. "
        "[Pipelines](../guides/pipelines.md) has an example.",
    ),
    Section(
        "Journal",
        JournalSettings,
        "A program that opens a journal passes them. `waltz journal --config FILE` reads them from YAML, then from `WALTZ_JOURNAL_<NAME>`.",
    ),
    Section("Group commit of a journal", GroupCommitSettings, "A program that opens a `GroupCommitJournal` passes them."),
]

INTERNAL = {
    "AccessRules": "the coordinator keeps them, and `waltz access` changes them",
    "Rule": "one of the rules of access, which `waltz access` changes",
    "Profiles": "the addresses of clusters that a user of the command line knows; the guide of the command line shows the file",
    "_Stored": "the rules of access, which the coordinator keeps and `waltz access` changes",
    "CompactionSettings": "a storage node makes them from its own settings and from the policies of a topic",
}
"""Models that only the platform fills, with the reason."""

MATTER: list[tuple[tuple[tuple[str, str], ...], str]] = [
    (
        (("Log server", "workers"), ("Storage node", "workers")),
        "More cores. Give the node one worker for each spare core.",
    ),
    (
        (("Log server", "session_timeout_s"),),
        "How long appends pause after a server is killed. Raise it if long pauses of the machine cause needless failovers.",
    ),
    (
        (("Client", "append_timeout_s"),),
        "When an append without an answer ends with `OutcomeUnknown`. Keep it above the log server's `session_timeout_s`.",
    ),
    (
        (("Client", "record_bytes_max"), ("Log server", "record_bytes_max")),
        "The largest transaction. Raise it on servers first, then on clients.",
    ),
    (
        (("Pipeline file", "trigger"),),
        "How late rows reach a table. Longer intervals make fewer, larger files.",
    ),
]
"""The five settings that most people change: where they are declared, and when to change them."""

INTRODUCTION = """\
# Settings

Generated from the models of settings by `make reference`.

The name of a setting ends with its unit: `_s` seconds, `_ms` milliseconds, `_bytes` bytes. Settings are fixed while a process runs; to change one,
restart the process. Unknown names are refused with the nearest known name.

## The five that matter

Set the addresses and names that have no default. Of the others, most people change only these:

| setting | of | default | change it for |
|---|---|---|---|
{matter}

The other defaults are measured choices. Change one only after you have measured the problem that it solves.

## How a file and the environment are read

A file is a YAML mapping from setting to value. The environment overrides the file; options of the command override both. Every setting can be given
in the environment: `WALTZ_SERVER_WORKERS=4`. Write a list with commas (`WALTZ_SERVER_PREFERRED_PARTITIONS=0,1,2`) or as YAML, and a mapping as YAML.
An empty value means "none" if a setting may have no value.

`WALTZ_LOG_LEVEL` (`debug`, `info`, `warning` or `error`) sets what `waltz server` and `waltz storage` log; see [log events](log_events.md).
The options of the Spark source are listed in [the Spark source](spark.md).
"""

ORDER = ("name", "source", "checkpoint", "trigger", "outputs", "dead_letters", "unrouted", "restart")
"""The order of the sections of a pipeline file. Others come last."""


def page() -> str:
    parts = [INTRODUCTION.format(matter="\n".join(_matter()))]
    for section in SECTIONS:
        override = f" Its arguments and options: {', '.join(f'`{name}`' for name in section.options)}." if section.options else ""
        introduction = textwrap.fill(section.introduction + override, COLUMNS, break_long_words=False, break_on_hyphens=False)
        parts.append(f"## {section.heading}\n\n{introduction}\n\n{table(section.model)}\n")
    return "\n".join(parts)


def table(model: type[Settings]) -> str:
    """A row for each field, nested ones by their path."""
    lines = ["| setting | type | default | allowed | how to choose |", "|---|---|---|---|---|"]
    for path, field in fields_of(model):
        unit = unit_of(path)
        default = "**required**" if field.is_required() else _shown(field.get_default(call_default_factory=True), unit)
        default = CHOSEN_WHEN_READ.get((model, path), default)
        kind = f"{_kind(field.annotation)}{f' ({unit})' if unit else ''}"
        lines.append(f"| `{path}` | {kind} | {default} | {_allowed(field, unit)} | {_escaped(field.description or '')} |")
    return "\n".join(lines)


def fields_of(model: type[Settings], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every field with its path, nested models below the field that holds them."""
    names = sorted(model.model_fields, key=lambda name: ORDER.index(name) if model is PipelineSettings and name in ORDER else len(ORDER))
    for name in names:
        field = model.model_fields[name]
        inner, many = settings_in(field.annotation)
        yield f"{prefix}{name}", field
        if inner is not None:
            yield from fields_of(inner, f"{prefix}{name}{'[]' if many else ''}.")


def models_in(model: type[Settings]) -> Iterator[type[Settings]]:
    """The models below a model, at any depth."""
    for field in model.model_fields.values():
        inner, _ = settings_in(field.annotation)
        if inner is not None:
            yield inner
            yield from models_in(inner)


def settings_in(annotation: Any) -> tuple[type[Settings] | None, bool]:
    """The nested model of a field, and whether the field is a list of it."""
    for kind in _members(annotation):
        if isinstance(kind, type) and issubclass(kind, Settings):
            return kind, False
        if get_origin(kind) is tuple and isinstance(get_args(kind)[0], type) and issubclass(get_args(kind)[0], Settings):
            return get_args(kind)[0], True
    return None, False


def unit_of(path: str) -> str:
    name = path.rsplit(".", 1)[-1]
    if name.endswith("_per_s"):
        return f"{name.removesuffix('_per_s').rsplit('_', 1)[-1]} per second"
    if "bytes" in name.split("_"):
        return "bytes"
    return "seconds" if name.endswith(("_s", "_s_max")) or "_s_" in name else "milliseconds" if name.endswith("_ms") else ""


def _matter() -> Iterator[str]:
    by_heading = {section.heading: section.model for section in SECTIONS}
    for places, reason in MATTER:
        name = places[0][1]
        default = _shown(by_heading[places[0][0]].model_fields[name].default, unit_of(name))
        of = " and ".join(f"[{heading.lower()}](#{heading.lower().replace(' ', '-')})" for heading, _ in places)
        yield f"| `{name}` | {of} | {default} | {reason} |"


def _members(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def _kind(annotation: Any) -> str:
    return " or ".join(_kind_of(kind) for kind in _members(annotation) if kind is not NoneType)


def _kind_of(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(kind))
    if get_origin(kind) in (tuple, frozenset):
        return "list" if settings_in(kind)[0] is not None else f"list of {_name(get_args(kind)[0])}"
    if get_origin(kind) is dict:
        return "mapping"
    return "settings" if isinstance(kind, type) and issubclass(kind, Settings) else _name(kind)


def _name(kind: Any) -> str:
    names = {"str": "text", "int": "whole number", "float": "number", "bool": "true or false", "datetime": "time or date", "Path": "path"}
    return names.get(kind.__name__, str(kind.__name__))


def _shown(value: Any, unit: str) -> str:
    if value is None or value in ((), {}, frozenset()):
        return "none"
    if isinstance(value, (tuple, frozenset)):
        return ", ".join(_shown(each, unit) for each in (value if isinstance(value, tuple) else sorted(value)))
    if isinstance(value, datetime):
        return f"`{value.isoformat().replace('+00:00', 'Z')}`"
    if isinstance(value, Settings):
        return "see below"
    return f"`{_number(value)}`{_binary(value) if unit.startswith('bytes') else ''}"


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) and abs(value) < 1e6 else str(value)


def _binary(value: int) -> str:
    for size, unit in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if value >= size and value % size == 0:
            return f" ({value // size} {unit})"
    return ""


def _allowed(field: FieldInfo, unit: str) -> str:
    bounds: dict[str, Any] = {}
    for each in field.metadata:
        names = ("ge", "gt", "le", "min_length", "max_length", "pattern")
        bounds |= {name: getattr(each, name) for name in names if getattr(each, name, None) is not None}
    length = "length " if bounds.keys() & {"min_length", "max_length"} else ""
    least, most = bounds.get("ge", bounds.get("min_length")), bounds.get("le", bounds.get("max_length"))
    texts = [f"above {_bound(bounds['gt'], unit)}"] if "gt" in bounds else []
    if least is not None and most is not None:
        texts.append(f"{length}{_bound(least, unit)} to {_bound(most, unit)}")
    elif least is not None or most is not None:
        texts.append(f"at least {length}{_bound(least, unit)}" if least is not None else f"at most {length}{_bound(most, unit)}")
    if "pattern" in bounds:
        texts.append(f"matches `{bounds['pattern']}`")
    return _escaped(", ".join(texts))


def _bound(value: Any, unit: str) -> str:
    return (_binary(value).strip(" ()") if unit.startswith("bytes") else "") or _number(value)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")
