"""One transaction as it is printed: format strings, and times as people write them."""

from __future__ import annotations

import io
import sys

import pytest

from waltz_log.cli.times import parse_time
from waltz_log.cli.transactions.printed_rows import Row, parse_format, printer
from waltz_log.errors import InvalidSetting

ROW = Row("shop/orders", 3, 42, 1_700_000_000_123, 7, b"order-7", b"two\x1b[31m \xff")
NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("template", "written"),
    [
        (r"%t %p %o %h\n", b"shop/orders 3 42 7\n"),
        (r"%k\t%K\0%S\\%%", b"order-7\t7\x0010\\%"),
        ("%s", b"two\x1b[31m \xff"),
        ("%T %d", b"1700000000123 2023-11-14T22:13:20.123+00:00"),
        (r"plain \q é", rb"plain \q " + "é".encode()),
        ("", b""),
    ],
)
def test_a_format_string_writes_bytes_as_they_are(template: str, written: bytes) -> None:
    assert parse_format(template)(ROW) == written


def test_a_transaction_without_a_key_has_an_empty_one_of_length_minus_one() -> None:
    assert parse_format("%k|%K")(ROW._replace(key=None)) == b"|-1"


def test_a_percent_sign_at_the_end_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="--format contains %, which is not defined"):
        parse_format("%s %")


def test_on_a_terminal_a_payload_is_escaped_and_line_breaks_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    printer("table", r"%s|\n")(ROW)
    assert terminal.getvalue() == r"two\x1b[31m \xff|" + "\n"


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("2023-11-14T22:13:20", NOW_MS),
        ("2023-11-14T22:13:20.123Z", NOW_MS + 123),
        ("2023-11-15T00:13:20+02:00", NOW_MS),
        ("1700000000001", NOW_MS + 1),
        ("90s", NOW_MS - 90_000),
        ("1.5h", NOW_MS - 5_400_000),
        ("2d", NOW_MS - 172_800_000),
    ],
)
def test_times_are_dates_numbers_or_so_long_ago(text: str, time_ms: int) -> None:
    assert parse_time("--from-time", text, NOW_MS) == time_ms


@pytest.mark.parametrize("text", ["", "now", "15", "-1h", "1w", "2023-13-01", "99999999999999999999999999-01-01"])
def test_other_times_are_refused(text: str) -> None:
    with pytest.raises(InvalidSetting, match="--to-time must be a time"):
        parse_time("--to-time", text, NOW_MS)
