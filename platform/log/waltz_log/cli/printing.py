"""How commands print what they found: a table for people; JSON or YAML for programs.

Names, payloads and errors come from anywhere, so text is escaped before it reaches a terminal: a sequence that moves the cursor, colors the screen or
renames the window is shown, and not executed. JSON and YAML escape such characters by themselves.
"""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, TextIO

from waltz_log.outside_text import printable, printable_lines

if TYPE_CHECKING:
    from rich.text import Text

__all__ = [
    "WIDTH",
    "cells",
    "laid_out",
    "plain_table",
    "print_data",
    "print_item",
    "print_line",
    "print_lines",
    "print_result",
    "print_table",
]

WIDTH = 200
"""Characters in a line of a table that is not printed on a terminal."""


def print_data(data: object, output: str) -> None:
    """One document: JSON, or YAML with the fields in the same order."""
    print(json.dumps(data, indent=2) if output == "json" else _yaml(data), end="\n" if output == "json" else "", flush=True)


def print_item(item: object, output: str) -> None:
    """One of many: a line of JSON, or a document of a YAML stream."""
    print(json.dumps(item) if output == "json" else f"---\n{_yaml(item)}", end="\n" if output == "json" else "", flush=True)


def print_result(data: object, lines: Iterable[str], output: str) -> None:
    """What a command did: one document for programs, lines for people."""
    if output != "table":
        print_data(data, output)
        return
    for line in lines:
        print_line(line)


def print_line(text: str, file: TextIO | None = None) -> None:
    """`file`: standard output if it is None."""
    print(printable(text), file=file, flush=True)


def print_lines(text: str) -> None:
    """A text of several lines, such as a document."""
    print(printable_lines(text), flush=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Prints the columns even if there are no rows. None is shown as a dash."""
    terminal = sys.stdout.isatty()
    sys.stdout.write(laid_out(columns, list(rows), shutil.get_terminal_size().columns if terminal else WIDTH, terminal=terminal))


def laid_out(columns: Sequence[str], rows: Sequence[Sequence[object]], width: int, *, terminal: bool) -> str:
    """Escaped, as a table of at most `width` characters, in which only cells of several words are wrapped. Where that is too wide, nothing is cut:
    on a terminal, each row is a block with a line for each column; elsewhere its line is longer."""
    shown = [tuple("-" if each is None else printable(str(each)) for each in row) for row in rows]
    by_column = list(zip(columns, *shown, strict=True))
    narrowest = [max(map(_longest_word, column)) for column in by_column]
    room = width - 2 * len(columns)
    if sum(narrowest) > room:
        return _blocks(columns, shown, width) if terminal else plain_table(columns, rows)
    widths = [max(map(len, column)) for column in by_column]
    while sum(widths) > room:
        _, widest = max((at_most - at_least, at) for at, (at_most, at_least) in enumerate(zip(widths, narrowest, strict=True)))
        widths[widest] -= 1
    return "".join(_wrapped(row, widths) for row in [tuple(columns), *shown])


def _longest_word(text: str) -> int:
    return max(map(len, text.split(" ")))


def _wrapped(row: Sequence[str], widths: Sequence[int]) -> str:
    """One row, of as many lines as its longest cell needs."""
    parts = [
        [text] if len(text) <= width else textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
        for text, width in zip(row, widths, strict=True)
    ]
    lines = zip_longest(*parts, fillvalue="")
    return "".join(f" {'  '.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))}".rstrip() + "\n" for line in lines)


def _blocks(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> str:
    """Escaped text, of which long words alone are broken."""
    margin = max(map(len, columns)) + 2
    blocks = []
    for row in rows:
        lines = []
        for name, text in zip(columns, row, strict=True):
            parts = textwrap.wrap(text, max(20, width - margin - 1), break_on_hyphens=False) or [""]
            lines += [f" {label.ljust(margin)}{part}".rstrip() for label, part in zip_longest([name], parts, fillvalue="")]
        blocks.append("".join(f"{line}\n" for line in lines))
    return "\n".join(blocks)


def plain_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Escaped, one line for each row, columns padded to their widest cell."""
    lines = [list(columns), *([("-" if each is None else printable(str(each))) for each in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "".join(f" {'  '.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()}\n" for line in lines)


def cells(*values: object) -> list[Text]:
    """Values as cells of a table of rich: escaped, and without rich's markup."""
    from rich.text import Text

    return [Text("-" if each is None else printable(str(each))) for each in values]


def _yaml(data: object) -> str:
    import yaml

    # As JSON first: YAML's safe writer knows plain types only, and a status has enumerations and tuples.
    return yaml.dump(json.loads(json.dumps(data)), Dumper=yaml.CSafeDumper, sort_keys=False, allow_unicode=False, default_flow_style=False, width=150)
