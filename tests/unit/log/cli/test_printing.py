"""What commands print: one style for all, and nothing from outside that a terminal would execute."""

from __future__ import annotations

import ast
import json
import sys
from enum import StrEnum
from pathlib import Path

import pytest
import yaml

import waltz_log
from waltz_log.cli.printing import plain_table, print_data, print_item, print_line, print_lines, print_table
from waltz_log.outside_text import printable

HOSTILE = "name\x1b]0;owned\x07\x1b[2J\u202eab\r\n"


class Word(StrEnum):
    LIVE = "live"


def test_text_from_outside_is_escaped_in_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["[red]name", "value"], [(HOSTILE, "[bold]plain[/]"), (None, 3)])
    shown = capsys.readouterr().out
    assert r"name\x1b]0;owned\x07\x1b[2J\u202eab\r\n" in shown
    assert "[bold]plain[/]" in shown, "rich's markup is not interpreted"
    assert shown.splitlines()[2].split() == ["-", "3"]
    for output in ("json", "yaml"):
        print_data({"name": HOSTILE}, output)
        print_item({"name": HOSTILE}, output)
    assert all(each.isprintable() or each == "\n" for each in capsys.readouterr().out)


def test_yaml_holds_what_json_holds_in_the_same_order(capsys: pytest.CaptureFixture[str]) -> None:
    data = {"z": [1, 2.5, None], "a": {"state": Word.LIVE, "text": HOSTILE, "yes": True, "number": "17"}, "tuple": (1, 2)}
    print_data(data, "json")
    as_json = capsys.readouterr().out
    print_data(data, "yaml")
    as_yaml = capsys.readouterr().out
    assert yaml.safe_load(as_yaml) == json.loads(as_json)
    assert list(yaml.safe_load(as_yaml)) == ["z", "a", "tuple"]


def test_many_items_are_lines_of_json_or_a_stream_of_documents(capsys: pytest.CaptureFixture[str]) -> None:
    for output in ("json", "yaml"):
        for number in range(2):
            print_item({"number": number}, output)
    out = capsys.readouterr().out
    lines, _, documents = out.partition("---\n")
    assert [json.loads(line) for line in lines.splitlines()] == [{"number": 0}, {"number": 1}]
    assert list(yaml.safe_load_all("---\n" + documents)) == [{"number": 0}, {"number": 1}]


def test_printable_text_stays_as_it_is() -> None:
    assert printable("Zürich 東京 🙂") == "Zürich 東京 🙂"
    assert printable("a\tb\x9b31m") == r"a\tb\x9b31m"


def test_a_long_table_has_one_line_for_each_row(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [(number, HOSTILE if number == 3 else "x" * 300, None) for number in range(201)]
    print_table(["number", "text", "none"], rows)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 202
    assert lines[4].split() == ["3", printable(HOSTILE), "-"]
    assert plain_table(["a", "bb"], [(1, 2)]) == " a  bb\n 1  2\n"


RAW = {
    "cli/printing.py": "the functions that escape",
    "cli/__main__.py": "a sentence of ours, without the packages that commands need",
    "cli/main.py": "escapes what it shows of an error",
    "cli/watching.py": "clears the screen, and escapes what it shows of an error",
    "cli/topics/lag.py": "escapes what it shows",
    "cli/topics/subscribers.py": "escapes what it shows",
    "cli/cluster/drain.py": "escapes what it shows",
    "cli/transactions/printed_rows.py": "writes payloads to a file as they are, and escapes them for a terminal",
}
"""Modules of commands that call `print` or write to a stream themselves, and why they may."""


def test_commands_print_text_through_the_functions_that_escape_it() -> None:
    """Topics, keys, file names and errors come from anywhere. A module that prints by itself must be listed with its reason."""
    package = Path(waltz_log.__file__).parent
    found = set()
    for path in sorted((package / "cli").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "sys.stdout.write", "sys.stderr.write", "typer.echo"):
                found.add(str(path.relative_to(package)))
    assert found == set(RAW)


@pytest.mark.parametrize(
    "text", ["\x1b[2J", "\x1b]0;title\x07", "\x9b2J", "\x9d0;title\x9c", "\u202egnp.exe", "\u2066x", "a\nb", "a\rb", "a\u2028b", "\x00", "\ud800"]
)
def test_a_line_holds_nothing_that_a_terminal_obeys(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_line(f"topic {text}")
    print_line(f"topic {text}", file=sys.stderr)
    print_lines(f"topic {text}\nsecond line")
    print_table(("name",), [(text,)])
    print_table(("name",), [(text,)] * (201))
    shown = capsys.readouterr()
    assert all(line.isprintable() for line in (shown.out + shown.err).split("\n"))
