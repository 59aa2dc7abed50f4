"""`waltz explain`: an error by its name, by its message as it was printed, or by the exit code of a command. Everything is read from the error
classes, as docs/reference/errors.md is."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import entry_points
from typing import Any, Final  # Any: JSON values

import waltz_log.errors
from waltz_log import exit_codes
from waltz_log.cli.printing import print_data, print_line
from waltz_log.coordination import embedded, java
from waltz_log.errors import InvalidRequest, WaltzError
from waltz_log.errors.explained import error_classes, explain_class
from waltz_log.exit_codes import OK

__all__ = ["ERRORS", "TROUBLESHOOTING", "find_errors", "run"]

ERRORS: Final = "waltz.errors"
"""Entry points of packages that have errors of their own; each is a module."""

_CLIENT, _APPEND = "the-client-cannot-connect", "appends-fail-or-are-slow"
_TABLE, _OPEN, _OUTBOX = "a-table-does-not-follow-the-log", "a-partition-does-not-open", "the-outbox"

TROUBLESHOOTING: Final[Mapping[str, str]] = {
    "BelongsToTopic": _APPEND,
    "ClusterKeyMismatch": _CLIENT,
    "ClusterUnavailable": _CLIENT,
    "CoordinatorBehind": _OPEN,
    "GapInTable": _TABLE,
    "GaveUp": _APPEND,
    "GaveUpOnConflict": _APPEND,
    "InvalidRequest": _CLIENT,
    "KeyMoved": _TABLE,
    "LockConflict": _APPEND,
    "ModeChanged": _TABLE,
    "NotAllowed": _APPEND,
    "NotAppended": _APPEND,
    "OutboxFenced": _OUTBOX,
    "OutboxFull": _OUTBOX,
    "OutcomeUnknown": _APPEND,
    "PositionNotReached": _TABLE,
    "RestoreOvertaken": _TABLE,
    "TableLocked": _TABLE,
    "TableReplaced": _TABLE,
    "TableRestored": _TABLE,
    "Unavailable": _CLIENT,
    "Undecodable": _TABLE,
    "UnreadableTable": _TABLE,
    "UnsafeTable": _TABLE,
    "UnsupportedDelta": _TABLE,
}
"""The section of docs/guides/troubleshooting.md that has the error among its symptoms; a test compares it with the page."""

PAGES: Final = "docs/guides/troubleshooting.md"
REFERENCE: Final = "docs/reference/errors.md"


def run(words: str, *, output: str) -> int:
    """Raises `InvalidRequest` for what is no error."""
    text = words.strip()
    if text.isdecimal():
        found = _exit_code(int(text))
    else:
        found = _described(find_errors(text))
    if output != "table":
        print_data(found, output)
        return OK
    for name, value in found.items():
        lines = value if isinstance(value, list) else [value]
        for number, line in enumerate(lines):
            print_line(f"{name.replace('_', ' ') if not number else '':<12} {line}")
    return OK


def find_errors(text: str) -> type[WaltzError]:
    """By a class's name anywhere in the text, else by the beginning of a message. Raises `InvalidRequest`, which names the most similar error."""
    text = text.removeprefix("waltz: ")
    known: dict[str, type[WaltzError]] = {}
    for load in (_own, _installed):  # those of other packages only if they are needed: their import is slow
        known |= load()
        names = {name.lower(): name for name in known}
        for word in re.findall(r"\w+", text):
            if word.lower() in names and (word != word.lower() or word == text):
                return known[names[word.lower()]]
        begun = [cls for cls in known.values() if text.startswith((f"{cls.text}: ", f"{cls.text} ")) or text == cls.text]
        if begun:
            longest = max(len(cls.text) for cls in begun)
            # A child without a text of its own has its parent's.
            return min((cls for cls in begun if len(cls.text) == longest), key=lambda cls: len(cls.__mro__))
    near = difflib.get_close_matches(text, [*known, *(cls.text for cls in known.values())], n=1, cutoff=0.5)
    hint = f", did you mean {near[0]}" if near else f"; {REFERENCE} lists all of them"
    raise InvalidRequest(reason=f"no such error: {text[:200]}{hint}")


def _own() -> dict[str, type[WaltzError]]:
    return {cls.__name__: cls for cls in error_classes([waltz_log.errors, java, embedded])}


def _installed() -> dict[str, type[WaltzError]]:
    """The errors of installed packages; packages that cannot be imported, because an extra is missing, none."""
    found: dict[str, type[WaltzError]] = {}
    for declared in entry_points(group=ERRORS):
        try:
            found |= {cls.__name__: cls for cls in error_classes([declared.load()])}
        except ImportError:
            continue
    return found


def _described(cls: type[WaltzError]) -> dict[str, Any]:
    found = asdict(explain_class(cls))
    error, parents = found["error"], [name for name in found["parents"] if name != "WaltzError"]
    known = "known: the call had no effect" if found["outcome"] == "none" else "unknown: the call may have had an effect"
    section = next((TROUBLESHOOTING[name] for name in (error, *parents) if name in TROUBLESHOOTING), None)
    return {
        "error": error,
        "kind_of": ", ".join(parents) or "WaltzError",
        "happened": found["happened"],
        "what_to_do": found["to_do"][:1].upper() + found["to_do"][1:],
        "message": re.sub(r"\{(\w+)\}", r"<\1>", found["message"]),
        "fields": [f"{name}: {kind}" for name, kind in found["fields"].items()],
        "outcome": known,
        "retry": "the same call can succeed later" if found["retriable"] else "the same call fails again until its cause is gone",
        "exit_code": found["exit_code"],
        "read": [f"{REFERENCE}#{error.lower()}", *([f"{PAGES}#{section}"] if section is not None else [])],
    }


def _exit_code(code: int) -> dict[str, Any]:
    for line in (exit_codes.__doc__ or "").splitlines():
        cells = [each.strip() for each in line.strip("|").split("|")]
        if cells[0] == str(code):
            names = sorted(name for name, cls in _own().items() if cls.exit_code == code)
            return {"exit_code": code, "meaning": cells[1], "what_to_do": cells[2], "errors": names, "read": [f"{REFERENCE}#exit-codes"]}
    raise InvalidRequest(reason=f"no command ends with exit code {code}; {REFERENCE} lists the codes")
