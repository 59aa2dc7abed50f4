"""A search finds what the simplest loop finds."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from waltz_log.console.reading.criteria import Criteria
from waltz_log.core.formats.envelope import pack_keyed, split_keyed
from waltz_log.core.formats.records import encode_record

DATA = st.binary(max_size=12) | st.builds(pack_keyed, st.sampled_from([b"a", b"ab", b"b"]), st.binary(max_size=6))
RECORDS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3), DATA), max_size=12)
WANTED = st.sampled_from(["a", "ab", "b", "\x00", "1"])


@given(RECORDS, st.none() | WANTED, st.none() | WANTED, st.none() | st.integers(0, 3), st.none() | st.integers(1, 3))
def test_matches_are_those_of_a_plain_loop(
    rows: list[tuple[int, int, bytes]], text: str | None, key: str | None, header: int | None, client: int | None
) -> None:
    criteria = Criteria(text, key, header, client)
    encoded = [encode_record(sender, 1, 0, at, number, data, at) for at, (number, sender, data) in enumerate(rows)]
    expected = []
    for at, (number, sender, data) in enumerate(rows):
        keyed = split_keyed(data)
        has_key = key is None or (keyed is not None and keyed.key == key.encode())
        # JSON writes a control character as an escape, which is another way to spell the text
        has_text = text is None or text.encode() in data or (text == "\x00" and b"\\u0000" in data)
        if has_key and has_text and header in (None, number) and client in (None, sender):
            expected.append(at)
    lengths = struct.pack(f">{len(encoded)}i", *map(len, encoded))
    assert criteria.matches(lengths, b"".join(encoded)) == expected


def test_text_is_found_where_json_escapes_it() -> None:
    record = encode_record(1, 1, 0, 0, 0, b'{"city": "Z\\u00fcrich"}')
    lengths = struct.pack(">i", len(record))
    assert Criteria(text="Zürich").matches(lengths, record) == [0]
    assert Criteria(text="zürich").matches(lengths, record) == []
