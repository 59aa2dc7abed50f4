"""Defects of this code that it notices itself."""

from __future__ import annotations

from waltz_log.errors.base import WaltzError
from waltz_log.exit_codes import DEFECT

__all__ = ["UndeclaredTransition"]


class UndeclaredTransition(WaltzError):
    """A session would have changed its state in a way that its table of transitions does not declare. It kept its state and ended.

    To do: report it as a defect, with the log of the server. The partition opens again by itself."""

    text = "this change of state is not declared"
    exit_code = DEFECT
    machine: str
    source: str
    target: str
