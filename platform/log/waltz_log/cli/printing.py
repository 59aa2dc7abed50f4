"""How commands print what they found: a table for people; JSON or YAML for programs.

Names, payloads and errors come from anywhere, so text is escaped before it reaches a terminal: a sequence that moves the cursor, colors the screen or
renames the window is shown, and not executed. JSON and YAML escape such characters by themselves.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TextIO

from waltz_log.outside_text import printable, printable_lines

if TYPE_CHECKING:
    from rich.text import Text

__all__ = ["ROWS_LAID_OUT", "WIDTH", "cells", "plain_table", "print_data", "print_item", "print_line", "print_lines", "print_result", "print_table"]

WIDTH = 200
"""Characters in a line of a table that is not printed on a terminal."""

ROWS_LAID_OUT = 200
"""Tables of more rows are printed without wrapping cells: laying out thousands of them costs more than asking the cluster."""


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
    rows = list(rows)
    if len(rows) > ROWS_LAID_OUT:
        sys.stdout.write(plain_table(columns, rows))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(*columns, box=None)
    for row in rows:
        table.add_row(*cells(*row))
    Console(file=sys.stdout, width=None if sys.stdout.isatty() else WIDTH).print(table)


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
