"""How bytes of a transaction are shown: formatted JSON, text with escapes, or hexadecimal. Pure.

The result is plain text, which the template engine escapes like any other text. Control characters, escape sequences of terminals and marks that
change the direction of text become visible escapes. So a payload cannot change the page or hide a part of itself.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Literal, NamedTuple

__all__ = ["SHOWN_MAX", "Payload", "Token", "preview", "show_payload"]

SHOWN_MAX = 64 * 1024
"""Bytes of one payload on a page. A longer one is cut there, and can be downloaded whole."""

COLORED_MAX = 32 * 1024
"""Characters of JSON that are shown with colors. Each token is an element of the page; a browser is slow with a hundred thousand of them."""

HEX_MAX = 4096
"""Bytes that are shown in hexadecimal."""

INDENT = "  "
DEPTH_MAX = 200
"""Levels of indentation. Deeper JSON is shown as text."""

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')


class Token(NamedTuple):
    """A piece of text and what it is: key, string, number, word, or plain."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Payload:
    """`tokens`: the text in pieces. `bytes`: the size of the whole payload; `shown`: how many of them are in the text."""

    kind: Literal["json", "text", "binary", "empty", "hidden"]
    tokens: tuple[Token, ...]
    bytes: int
    shown: int

    @property
    def cut(self) -> bool:
        return self.shown < self.bytes


HIDDEN_TEXT = "hidden"


def show_payload(data: bytes, *, hidden: bool = False, bytes_max: int = SHOWN_MAX) -> Payload:
    """The payload for a page, at most `bytes_max` bytes of it."""
    size = len(data)
    if hidden:
        return Payload("hidden", (), size, 0)
    if not data:
        return Payload("empty", (), 0, 0)
    text = _text(data if size <= bytes_max else _whole_characters(data[:bytes_max]))
    if text is None:
        return Payload("binary", (Token("plain", _hex(data[:HEX_MAX])),), size, min(size, HEX_MAX))
    if size <= bytes_max and (formatted := _json(text)) is not None:
        if sum(len(token.text) for token in formatted) > COLORED_MAX:
            formatted = (Token("plain", "".join(token.text for token in formatted)),)
        return Payload("json", formatted, size, size)
    return Payload("text", (Token("plain", visible(text)),), size, min(size, bytes_max))


def preview(data: bytes, characters_max: int = 200) -> str:
    """The beginning of the payload on one line."""
    text = _text(_whole_characters(data[: 4 * characters_max]))
    if text is None:
        return data[: characters_max // 3].hex(" ")
    line = " ".join(text.split())
    return visible(line if len(line) <= characters_max else line[: characters_max - 1] + "…")


def visible(text: str) -> str:
    """The text with an escape for each character that is not printable, except line ends and tabs."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in "\n\t" else each.encode("unicode_escape").decode() for each in text)


def _text(data: bytes) -> str | None:
    """None if it is not text: not UTF-8, or many control characters."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    controls = sum(1 for each in text[:2000] if each < " " and each not in "\n\r\t\x1b")
    return None if controls > len(text[:2000]) / 10 else text


def _whole_characters(data: bytes) -> bytes:
    """Removes an incomplete UTF-8 character at the end."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte < 0x80:
            break
        if byte >= 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return data[:-back] if length > back else data
    return data


def _hex(data: bytes) -> str:
    lines = []
    for start in range(0, len(data), 16):
        row = data[start : start + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "·" for byte in row)
        lines.append(f"{start:08x}  {row[:8].hex(' '):<23}  {row[8:].hex(' '):<23}  {text}")
    return "\n".join(lines)


def _json(text: str) -> tuple[Token, ...] | None:
    """The same JSON with line ends and indentation; None if the text is not JSON. Numbers and strings keep their spelling, because only the space
    between tokens changes."""
    if text[:1] not in "{[" and text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        json.loads(text, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return None
    return _indented(_TOKEN.findall(text))


def _indented(tokens: list[str]) -> tuple[Token, ...] | None:
    found: list[Token] = []
    depth = 0
    for at, token in enumerate(tokens):
        following = tokens[at + 1] if at + 1 < len(tokens) else ""
        if token in "{[":
            depth += 1
            if depth > DEPTH_MAX:
                return None
            found.append(Token("plain", token if following in "}]" else f"{token}\n{INDENT * depth}"))
        elif token in "}]":
            depth -= 1
            empty = at and tokens[at - 1] in "{["
            found.append(Token("plain", token if empty else f"\n{INDENT * depth}{token}"))
        elif token == ",":
            found.append(Token("plain", f",\n{INDENT * depth}"))
        elif token == ":":
            found.append(Token("plain", ": "))
        else:
            found.append(Token(_kind(token, following), visible(token)))
    return tuple(found)


def _kind(token: str, following: str) -> str:
    if token[0] == '"':
        return "key" if following == ":" else "string"
    return "word" if token in ("true", "false", "null") else "number"
