"""docs/reference/errors.md, the page of all errors.

Everything on the page is read from the error classes and from `waltz_log.exit_codes`.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pyspark_waltz.errors
import waltz_delta.errors
import waltz_log.coordination.embedded
import waltz_log.coordination.java
import waltz_log.errors
from waltz_log import exit_codes
from waltz_log.errors import WaltzError
from waltz_log.errors.explained import error_classes, explain_class

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "errors.md"
COLUMNS = 120
SECTIONS = {
    "The log and its clients": [waltz_log.errors],
    "The Spark source": [pyspark_waltz.errors],
    "The Delta sink": [waltz_delta.errors],
    "Missing installations": [waltz_log.coordination.java, waltz_log.coordination.embedded],
}

INTRODUCTION = f"""\
# Errors

Generated from the error classes by `make reference`.

Every error is a `WaltzError`. Its fields are attributes with the types that are listed here. `str(error)` is a sentence, followed by the fields as
`key=value`; a field that is None is left out. Names, fields and exit codes are an interface: match on them. Messages are for people and may change.

| attribute | meaning |
|---|---|
| `error.facts` | the fields, as a dict |
| `error.outcome` | `none`: the failed call had no effect. `unknown`: it may have had one |
| `error.retriable` | whether the same call can succeed later |
| `error.exit_code` | the exit code of a command or job that ends with this error |

An error keeps its class and its fields when it is pickled. Errors of the log also keep them when a server sends them to a client.

## Exit codes

{{table}}

A job of the Delta sink uses the same codes. A command that ends with an `OSError` has exit code {exit_codes.MACHINE}.

## The tree

```text
{{tree}}
```
"""


def classes(section: str) -> list[type[WaltzError]]:
    """The error classes of a section of the page, parents first."""
    return error_classes(SECTIONS[section])


def page() -> str:
    lines = (exit_codes.__doc__ or "").splitlines()
    table = "\n".join(line for line in lines if line.startswith("|"))
    parts = [INTRODUCTION.format(table=table, tree="\n".join(_tree(WaltzError)))]
    for section in SECTIONS:
        parts += [f"## {section}\n", *(_described(cls) for cls in classes(section))]
    return "\n".join(parts)


def what_to_do(cls: type[WaltzError]) -> tuple[str, str]:
    """What happened, and what the caller should do, with links to the pages that are named."""
    found = explain_class(cls)
    happened, remedy = (re.sub(r"docs/([\w/]+\.md)", r"[docs/\1](../\1)", text) for text in (found.happened, found.to_do))
    return happened, remedy


def message(cls: type[WaltzError]) -> str:
    """The message with the names of the fields in place of their values."""
    return explain_class(cls).message


def field_types(cls: type[WaltzError]) -> dict[str, str]:
    """The fields as declared, in the order of the message."""
    return explain_class(cls).fields


def _tree(cls: type[WaltzError], depth: int = 0) -> Iterator[str]:
    yield "    " * depth + cls.__name__
    listed = {each for section in SECTIONS for each in classes(section)}
    for child in sorted(set(cls.__subclasses__()) & listed, key=lambda each: each.__name__):
        yield from _tree(child, depth + 1)


def _described(cls: type[WaltzError]) -> str:
    happened, remedy = what_to_do(cls)
    facts = [
        f"**What to do**: {remedy[:1].upper()}{remedy[1:]}",
        "**Fields**: " + ", ".join(f"`{name}: {type}`" for name, type in field_types(cls).items()),
        f"**Outcome**: {'known, the call had no effect' if cls.outcome == 'none' else 'unknown, the call may have had an effect'}",
        f"**The same call can succeed later**: {'yes' if cls.retriable else 'no'}",
        f"**Exit code**: {cls.exit_code}",
    ]
    items = "\n".join(_wrapped(f"- {fact}", "  ") for fact in facts)
    return f"### {cls.__name__}\n\n{_wrapped(happened)}\n\n```text\n{_wrapped(message(cls))}\n```\n\n{items}\n"


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(text, COLUMNS, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
