"""Whether a condition ended as it must."""

from __future__ import annotations

import re

from verification.machines.conditions import Condition

__all__ = ["judge"]

TAIL_LINES = 30


def judge(condition: Condition, code: int, output: str) -> str | None:
    """What went wrong, with the end of the output, or None: a session succeeds and shows its row; a refusal fails, says its sentence, and shows no
    trace of an exception."""
    tail = "\n".join(output.splitlines()[-TAIL_LINES:])
    if not re.search(condition.expected, output):
        return f"exit code {code}, and no {condition.expected!r} in:\n{tail}"
    if condition.fails and code == 0:
        return f"it succeeded:\n{tail}"
    if condition.fails and "Traceback (most recent call last)" in output:
        return f"it shows a traceback:\n{tail}"
    if not condition.fails and code != 0:
        return f"exit code {code}:\n{tail}"
    return None
