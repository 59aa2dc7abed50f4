"""docs/reference/machines.md, the page of what happens on a machine that is not empty. Everything in its table is read from the conditions of
`make machines`."""

from __future__ import annotations

import re
from pathlib import Path

from verification.machines.conditions import CONDITIONS, Condition
from verification.machines.session import SEEN

__all__ = ["PAGE", "page"]

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "machines.md"

INTRODUCTION = """\
# Machines that are not empty

Generated from `verification/machines/conditions.py` by `make reference`.

The platform must not depend on what else is on a machine: another Spark, settings of pip, a locale, a limit. `make machines` makes a clone for each
of these {number} conditions, without `.git`, and compares what happens with this table. Those with a check mark are also part of every run of CI. The
session is the README's: `make setup`, `waltz dev`, an append, a Spark job that fills a Delta table, and a query with Spark SQL.

| Condition | What happens | CI |
|---|---|---|
"""

END = """
Some conditions need root, for a namespace or another user. Run one of them with a part of its name: `make machines ONLY='a colon'`. Where the session
works, `make machines COMMAND='make demo' ONLY='no Java'` runs another command in its place.
"""


def page() -> str:
    rows = [f"| {each.name} | {_end(each)} | {'✓' if each.short else ''} |\n" for each in CONDITIONS]
    return INTRODUCTION.format(number=len(CONDITIONS)) + "".join(rows) + END


def _end(condition: Condition) -> str:
    if not condition.ends.endswith(":"):
        return condition.ends
    return f"{condition.ends} `{_shown(condition.expected)}`"


def _shown(expression: str) -> str:
    """The expression of a sentence as the sentence."""
    assert expression != SEEN
    return re.sub(r"\\(.)", r"\1", re.sub(r"\(\.\|\n\)\*|\.\*", "…", expression))
