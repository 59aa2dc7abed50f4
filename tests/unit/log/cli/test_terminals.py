"""What commands print fits a terminal of 80 columns, and a reader that goes away early ends them silently."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from tools.reference_commands import commands
from waltz_log.cli.main import run
from waltz_log.cli.printing import print_table
from waltz_log.exit_codes import CLOSED_PIPE, OK

NAMES = [name for name, _ in commands()]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 80)  # read from the environment once, at its import
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    return Terminal()


@pytest.mark.parametrize("name", ["", "topic", "cluster", "storage", *NAMES])
def test_help_fits_80_columns(name: str, terminal: Terminal) -> None:
    with redirect_stdout(terminal):
        assert run([*name.split(), "--help"]) == OK
    assert "Usage: " in terminal.getvalue()
    assert [line for line in terminal.getvalue().split("\n") if len(line) > 80] == []


TOPIC = ("partition", "log", "first retained", "high-water mark", "bytes", "view up to", "held by", "subscribers' lag")
LAG = ("reader", "name", "partition", "topic", "position", "high-water mark", "lag", "batch under way up to")
WIDE: list[tuple[tuple[str, ...], tuple[object, ...]]] = [
    (TOPIC, (0, 12, 1234567890, 2234567890, "123456789012", "223456789", "subscriber billing", "billing: 123456789, audit: 3")),
    (LAG, ("checkpoint", "var/checkpoints/orders", 3, "shop/orders/3", 123456789, 123456999, 210, None)),
    (("node", "address", "answers"), ("storage-0", "storage-0.storage.waltz.svc.cluster.local:5001", "no, failed to connect to all addresses")),
    (("setting", "value"), ("x", "a" * 200)),
]


@pytest.mark.parametrize(("columns", "row"), WIDE)
@pytest.mark.parametrize("count", [1, 3, 201])
def test_a_table_fits_80_columns_and_nothing_is_cut(columns: tuple[str, ...], row: tuple[object, ...], count: int, terminal: Terminal) -> None:
    """A number of which the end is missing is a wrong number."""
    with redirect_stdout(terminal):
        print_table(columns, [row] * count)
    lines = terminal.getvalue().split("\n")
    assert [line for line in lines if len(line.rstrip()) > 80] == []
    words = "".join(" ".join(lines).split())
    for value in row:
        for word in ("-" if value is None else str(value)).split():
            assert word in words, word
    assert "…" not in words


def test_a_narrow_table_stays_a_table(terminal: Terminal) -> None:
    with redirect_stdout(terminal):
        print_table(("partition", "replicas"), [(number, "storage-0 live, storage-1 live, storage-2 live " * 3) for number in range(3)])
    assert terminal.getvalue().split("\n")[0].split() == ["partition", "replicas"]


def test_without_a_terminal_a_wide_row_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name", "text"), [("a", "x" * 300)])
    assert capsys.readouterr().out == f" name  text\n a     {'x' * 300}\n"


CLOSED = """
import os, sys
from waltz_log.cli.main import run
for line in sys.stdin.read().splitlines():
    reader, writer = os.pipe()
    os.close(reader)
    os.dup2(writer, 1)
    os.close(writer)
    sys.stdout = open(1, "w", closefd=False)
    try:
        code = run(line.split())
    except SystemExit as ended:
        code = f"exit {ended.code}"
    except BaseException as error:
        code = repr(error)
    print(line, code, file=sys.stderr, sep=": ")
"""


def test_a_closed_reader_ends_each_command_silently() -> None:
    """All commands in one process, whose output has no reader."""
    lines = [f"{name} --help" for name in NAMES]
    lines += [
        "--help",
        "--version",
        "explain 3",
        "explain 3 -o json",
        "config show server",
        "config show client -o yaml",
        "pipeline schema",
        "doctor",
    ]
    environment = os.environ | {"WALTZ_LOG_LEVEL": "error"}
    done = subprocess.run(
        [sys.executable, "-c", CLOSED], input="\n".join(lines), env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stderr.splitlines() == [f"{line}: {CLOSED_PIPE}" for line in lines]


def test_a_closed_reader_ends_a_process_without_a_traceback() -> None:
    """With what the interpreter itself writes at its end."""
    reader, writer = os.pipe()
    os.close(reader)
    waltz = Path(sys.executable).with_name("waltz")
    try:
        done = subprocess.run([waltz, "explain", "3"], stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    finally:
        os.close(writer)
    assert (done.stderr, done.returncode) == ("", CLOSED_PIPE)
