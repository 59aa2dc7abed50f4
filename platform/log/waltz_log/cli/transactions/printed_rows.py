"""One transaction as `waltz read` and `waltz tail` print it: a line for people, JSON, YAML, or a format string with the letters of kcat.

Text is UTF-8. Other bytes are shown with escapes, and in JSON and YAML as base64 under another name. A format string writes the bytes unchanged,
except on a terminal: there they are escaped, so that no payload is executed.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, NamedTuple

from waltz_log.cli.printing import print_item
from waltz_log.errors import InvalidSetting
from waltz_log.outside_text import printable

__all__ = ["FORMAT_HELP", "Filter", "Row", "parse_format", "printer"]


class Row(NamedTuple):
    """`topic`: its name, empty without one."""

    topic: str
    partition: int
    transaction_id: int
    timestamp_ms: int
    header: int
    key: bytes | None
    data: bytes


@dataclass(frozen=True, slots=True)
class Filter:
    """What is shown: all that is not None must hold. `text`: anywhere in the data."""

    text: bytes | None = None
    header: int | None = None
    key: bytes | None = None

    def fits(self, row: Row) -> bool:
        return (
            (self.key is None or row.key == self.key)
            and (self.header is None or row.header == self.header)
            and (self.text is None or self.text in row.data)
        )


def printer(output: str, template: str | None) -> Callable[[Row], None]:
    """Raises `InvalidSetting` for a format string with unknown letters, or together with another output than a table."""
    if template is None:
        return lambda row: print(_line(row), flush=True) if output == "table" else print_item(_fields(row), output)
    if output != "table":
        raise InvalidSetting(name="--format", reason="cannot be combined with --output", nearest=None)
    format_row = parse_format(template)
    return lambda row: _write(format_row(row))


def _write(text: bytes) -> None:
    if sys.stdout.isatty():
        # The line breaks of the format string are wanted, and those of a payload do no harm.
        sys.stdout.write("\n".join(printable(line) for line in text.decode(errors="backslashreplace").split("\n")))
        sys.stdout.flush()
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(text)
        sys.stdout.buffer.flush()


# ---- format strings --------------------------------------------------------------------------------------------------------------------------------

_LETTERS: Final[Mapping[str, tuple[str, Callable[[Row], bytes]]]] = {
    "t": ("topic", lambda row: row.topic.encode()),
    "p": ("partition", lambda row: b"%d" % row.partition),
    "o": ("transaction id", lambda row: b"%d" % row.transaction_id),
    "k": ("key", lambda row: row.key or b""),
    "s": ("data", lambda row: row.data),
    "K": ("bytes of the key, -1 without one", lambda row: b"%d" % (-1 if row.key is None else len(row.key))),
    "S": ("bytes of the data", lambda row: b"%d" % len(row.data)),
    "h": ("header", lambda row: b"%d" % row.header),
    "T": ("time in ms since 1970", lambda row: b"%d" % row.timestamp_ms),
    "d": ("time in ISO 8601", lambda row: _time(row.timestamp_ms).encode()),
    "%": ("a percent sign", lambda row: b"%"),
}
_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}

FORMAT_HELP: Final = (
    "Format of each transaction: " + ", ".join(f"%{letter} {meaning}" for letter, (meaning, _) in _LETTERS.items()) + "; \\n \\t \\0."
)


def parse_format(template: str) -> Callable[[Row], bytes]:
    """Raises `InvalidSetting`."""
    parts: list[bytes | Callable[[Row], bytes]] = []
    at = 0
    while at < len(template):
        sign, letter = template[at], template[at + 1 : at + 2]
        if sign == "%":
            if letter not in _LETTERS:
                known = ", ".join(f"%{each}" for each in _LETTERS)
                raise InvalidSetting(name="--format", reason=f"contains %{letter}, which is not defined; use {known}", nearest=None)
            parts.append(_LETTERS[letter][1])
        elif sign == "\\" and letter in _ESCAPES:
            parts.append(_ESCAPES[letter])
        else:
            parts.append(sign.encode(errors="surrogateescape"))
            at += 1
            continue
        at += 2
    return lambda row: _joined(parts, row)


def _joined(parts: Sequence[bytes | Callable[[Row], bytes]], row: Row) -> bytes:
    return b"".join(part if isinstance(part, bytes) else part(row) for part in parts)


# ---- lines and fields ------------------------------------------------------------------------------------------------------------------------------


def _line(row: Row) -> str:
    key = "" if row.key is None else f" key={_shown(row.key)}"
    return f"{row.partition} {row.transaction_id} {_time(row.timestamp_ms)} header={row.header}{key} {_shown(row.data)}"


def _fields(row: Row) -> dict[str, object]:
    found: dict[str, object] = {"partition": row.partition, "transaction_id": row.transaction_id, "timestamp": _time(row.timestamp_ms)}
    return found | {"header": row.header} | _text("key", row.key) | _text("data", row.data)


def _text(name: str, data: bytes | None) -> dict[str, object]:
    if data is None:
        return {}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def _shown(data: bytes) -> str:
    return printable(data.decode(errors="backslashreplace"))


def _time(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
