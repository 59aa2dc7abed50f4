"""docs/reference/log_events.md, the page of all log events.

Names, levels, fields and processes are read from the calls in the source, meanings from `tools/log_events.py`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from tools.log_events import MEANINGS

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference" / "log_events.md"
LOGGERS = ("log", "_kazoo_log")
LEVELS = ("error", "warning", "info", "debug")
METHODS = (*LEVELS, "exception")
EXPANDED = {
    "asdict(finding)": ("part", "file", "offset", "transaction_id", "last_transaction_id", "reason"),
    "facts": ("operation", "resource", "roles", "stated_by", "left_out"),
}
"""Fields that an event has as `**expression`: of a `Finding` (waltz_log.storage.integrity.verify), and of a denial (waltz_log.security.audit_log)."""

SECTIONS = {
    "All processes": ("waltz_log/background_tasks.py", "waltz_log/predecessor.py"),
    "Log server": ("waltz_log/server",),
    "Storage node": ("waltz_log/storage", "waltz_log/compaction"),
    "Console": ("waltz_log/console",),
    "Processes and workers": ("waltz_log/processes", "waltz_log/monitoring", "waltz_log/telemetry"),
    "Connections and coordinator": ("waltz_log/transport", "waltz_log/coordination", "waltz_log/security"),
    "Client": ("waltz_log/client", "waltz_log/testing"),
    "Outbox and journal": ("waltz_log/outbox", "waltz_log/journal"),
    "Spark source": ("pyspark_waltz",),
    "Delta sink": ("waltz_delta",),
}

INTRODUCTION = """\
# Log events

Generated from the source and from `tools/log_events.py` by `make reference`.

`waltz server` and `waltz storage` write one event per line on stderr, as `key=value`:

```text
timestamp=2026-11-21T13:41:41.450Z level=error event="corruption found" part=data file=0/0000000000000000774.seg offset=19869
```

Names of events and fields are an interface: match on them. `--log-level` or `WALTZ_LOG_LEVEL` chooses the lowest level that is written (`info` by
default). In the client, the outbox and the sink, events go to `structlog`, which the application configures; to stderr if it does
not.

| level | what to do |
|---|---|
| error | Act: something does not work until it is repaired, or there is a defect. |
| warning | Read: the platform continues by itself. Act if the event repeats. |
| info | Nothing: a normal change of state. |
| debug | Nothing: details for developers. |

In an event of Spark's executors, or of the ZooKeeper client, `%s` and `%r` stand for a value: match on the text before it.

Fields that many events share: `partition` is the log partition, `replica` the name of a storage node, `session` the store session, `error` a message.
An event with a stack trace also has the field `exception`.
"""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a logger. `path`: of the module, from the source root."""

    event: str
    levels: tuple[str, ...]
    fields: tuple[str, ...]
    path: str


class UnreadableCall(Exception):
    """A logger call whose event or fields this page cannot know. Log a constant, at a level; name the fields of `**expression` in `EXPANDED`."""


def calls_in(source: str, path: str) -> Iterator[Call]:
    """Raises `UnreadableCall`."""
    tree = ast.parse(source)
    read: set[int] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        options = [node.func.body, node.func.orelse] if isinstance(node.func, ast.IfExp) else [node.func]
        methods = [each for each in options if isinstance(each, ast.Attribute) and each.attr in METHODS and _is_logger(each.value)]
        if not methods:
            continue
        event = node.args[0] if node.args else None
        levels = tuple("error" if each.attr == "exception" else each.attr for each in methods)
        if not isinstance(event, ast.Constant) or not isinstance(event.value, str):
            raise UnreadableCall(f"{path}:{node.lineno}")
        read |= {id(each.value) for each in methods}
        traced = {"exception"} if "exception" in {each.attr for each in methods} or any(each.arg == "exc_info" for each in node.keywords) else set()
        expanded = [ast.unparse(each.value) for each in node.keywords if each.arg is None]
        if not EXPANDED.keys() >= set(expanded):
            raise UnreadableCall(f"{path}:{node.lineno}")
        fields = [each.arg for each in node.keywords if each.arg not in (None, "exc_info")] + [name for each in expanded for name in EXPANDED[each]]
        yield Call(event.value, levels, (*fields, *sorted(traced)), path)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == "log" and isinstance(node.ctx, ast.Load) and id(node) not in read:
            raise UnreadableCall(f"{path}:{node.lineno}")


def _is_logger(node: ast.expr) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and node.id in LOGGERS


def calls() -> list[Call]:
    """All calls of the product, in the order of the source."""
    found: list[Call] = []
    for root in ("platform/log", "platform/spark_source", "platform/sink"):
        for path in sorted((ROOT / root).rglob("*.py")):
            source = path.read_text()
            if re.search(r"^_?\w*log = (get_logger|logging\.getLogger)", source, re.MULTILINE):
                found += calls_in(source, path.relative_to(ROOT / root).as_posix())
    return found


def is_in(path: str, places: Iterable[str]) -> bool:
    """Whether the path is one of the files, or in one of the folders."""
    return any(path == place or path.startswith(f"{place}/") for place in places)


def page() -> str:
    found = calls()
    parts = [INTRODUCTION]
    for heading, folders in SECTIONS.items():
        here = [call for call in found if is_in(call.path, folders)]
        parts.append(f"## {heading}\n\n| event | level | fields | meaning |\n|---|---|---|---|")
        parts += [_row(event, [call for call in here if call.event == event]) for event in sorted({call.event for call in here}, key=str.lower)]
        parts.append("")
    return "\n".join(parts)


def _row(event: str, here: list[Call]) -> str:
    levels = sorted({level for call in here for level in call.levels}, key=LEVELS.index)
    fields = dict.fromkeys(field for call in here for field in call.fields)
    return f"| `{event}` | {', '.join(levels)} | {', '.join(f'`{each}`' for each in fields)} | {MEANINGS.get(event, '')} |"
