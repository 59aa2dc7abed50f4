"""Payloads on a page: nothing is lost, nothing is drawn that the bytes do not say."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz_log.console.payloads import SHOWN_MAX, preview, show_payload

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def text_of(data: bytes) -> str:
    return "".join(token.text for token in show_payload(data).tokens)


@given(st.lists(VALUES, max_size=4) | st.dictionaries(st.text(max_size=8), VALUES, max_size=4), st.booleans(), st.sampled_from([None, 1, 4]))
def test_formatted_json_says_the_same(value: Any, ascii_only: bool, indent: int | None) -> None:
    shown = show_payload(json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode())
    assert shown.kind == "json"
    if ascii_only:
        assert json.loads("".join(token.text for token in shown.tokens)) == value


def test_numbers_and_repeated_keys_keep_their_spelling() -> None:
    assert text_of(b'{"a":1.10,"a":123456789012345678901234567890,"b":1E5,"c":[]}').split() == (
        ["{", '"a":', "1.10,", '"a":', "123456789012345678901234567890,", '"b":', "1E5,", '"c":', "[]", "}"]
    )


@given(st.binary(max_size=300))
def test_any_bytes_can_be_shown_and_only_printable_text_comes_out(data: bytes) -> None:
    shown = show_payload(data)
    assert shown.bytes == len(data)
    assert shown.kind != "hidden"
    for text in (preview(data), *(token.text for token in shown.tokens)):
        assert all(each.isprintable() or each in "\n\t" for each in text)


@pytest.mark.parametrize("data", [b"\x1b[31mred\x1b]0;title\x07", "\u202eevil".encode(), b'{"a": "\xe2\x80\xae"}'])
def test_escape_sequences_and_direction_marks_are_visible(data: bytes) -> None:
    text = text_of(data)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "\\" in text or "1b" in text


def test_a_long_payload_is_cut_between_characters() -> None:
    data = "ü".encode() * SHOWN_MAX
    shown = show_payload(data[:-1] + b"!!", bytes_max=1001)
    assert (shown.kind, shown.cut, shown.bytes) == ("text", True, len(data) + 1)
    assert "".join(token.text for token in shown.tokens) == "ü" * 500


def test_deep_and_broken_json_is_text() -> None:
    assert show_payload(b"[" * 100_000).kind == "text"
    assert show_payload(b"[" * 500 + b"]" * 500).kind == "text"
    assert show_payload(b'{"a": }').kind == "text"
    assert show_payload(b"").kind == "empty"
    assert show_payload(b"\x00\x01\x02").kind == "binary"


def test_a_hidden_payload_shows_its_size_alone() -> None:
    shown = show_payload(b"secret", hidden=True)
    assert (shown.tokens, shown.bytes) == ((), 6)
