"""Text that comes from outside the process: names in requests and certificates, keys, file names, output of other programs.

Before such a text reaches a log line, the audit log, an error message or a terminal, it is made printable and cut. A control character could move a
cursor, color a screen, rename a window, reverse the direction of a line or begin a forged line; a long text could push out what was written before
it. Limits count bytes of UTF-8, because that is what a file grows by. Pure.
"""

from __future__ import annotations

from typing import Final

__all__ = ["NAME_BYTES_MAX", "cut", "printable", "printable_lines"]

NAME_BYTES_MAX: Final = 256
"""For one name in a log line or a message. Topics have at most 200 bytes and principals that a rule can name 249."""


def printable(text: str) -> str:
    """On one line of a terminal, whatever is in it: characters that are not printable, such as escapes, line ends and direction overrides, as Python
    escapes them."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def printable_lines(text: str) -> str:
    """Like `printable`, for a text of several lines: line feeds stay. A carriage return before a line feed is part of the line end."""
    return "\n".join(printable(line.removesuffix("\r")) for line in text.split("\n"))


def cut(text: str, bytes_max: int = NAME_BYTES_MAX) -> str:
    """Printable, and at most about `bytes_max` bytes of UTF-8. The end of a longer text is replaced by how many characters the text has."""
    shown = printable(text[: bytes_max + 1])
    if len(text) <= bytes_max and len(shown.encode()) <= bytes_max:
        return shown
    return f"{shown.encode()[:bytes_max].decode(errors='ignore')}... ({len(text)} characters)"
