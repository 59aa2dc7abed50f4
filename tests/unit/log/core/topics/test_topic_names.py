"""Names and ids of topics: the documented vectors, what is refused, and how stable the places are."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz_log.core.formats.envelope import ENVELOPE_BYTES, KEY_BYTES_MAX, Keyed, pack_keyed, split_keyed
from waltz_log.core.topics.topic_names import NAMES_LENGTH_MAX, TopicName, jump_hash, name_id, partition_of_key
from waltz_log.errors import InvalidRequest


def test_ids_are_the_documented_ones() -> None:
    name = TopicName.parse("my-namespace/my-topic")
    assert (name.namespace_id, name.topic_id) == (0x1F8F218F4A9A039C, 0xDEA1858B5AE5B595)
    assert name_id("a") != name_id("A")


@pytest.mark.parametrize("text", ["a/b", "alex_gallego-007/1234", "A-Z_0-9/x"])
def test_names_of_letters_digits_dashes_and_underscores_are_valid(text: str) -> None:
    assert str(TopicName.parse(text)) == text


@pytest.mark.parametrize("text", ["", "a", "/a", "a/", "a/b/c", "../b", "a/..", "a/b c", "ä/b", "a/b\n", "a/b.c", "a\0/b", "٣/b"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="not a topic's name"):
        TopicName.parse(text)


def test_a_name_too_long_for_a_path_is_refused() -> None:
    TopicName.parse("n" * 100 + "/" + "t" * (NAMES_LENGTH_MAX - 100))
    with pytest.raises(InvalidRequest, match="at most"):
        TopicName.parse("n" * 100 + "/" + "t" * (NAMES_LENGTH_MAX - 99))


def _reference_jump(key: int, buckets: int) -> int:
    """As the paper has it, in exact arithmetic."""
    b, j = -1, 0
    while j < buckets:
        b = j
        key = (key * 2862933555777941757 + 1) % (1 << 64)
        j = (b + 1) * (1 << 31) // ((key >> 33) + 1)
    return b


@given(st.integers(0, (1 << 64) - 1), st.integers(1, 4096))
def test_the_jump_hash_is_the_papers(number: int, buckets: int) -> None:
    assert jump_hash(number, buckets) == _reference_jump(number, buckets)


def test_one_bucket_more_moves_its_share_and_only_to_itself() -> None:
    numbers = [name_id(str(n)) for n in range(20_000)]
    before, after = [jump_hash(n, 7) for n in numbers], [jump_hash(n, 8) for n in numbers]
    moved = [new for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) == {7}
    assert abs(len(moved) / len(numbers) - 1 / 8) < 0.01
    assert max(Counter(after).values()) < 1.1 * len(numbers) / 8


def test_no_bucket_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        jump_hash(1, 0)


def test_a_key_has_its_partition_permanently() -> None:
    # What these are is in the data of users: they may never change.
    assert [partition_of_key(key, 16) for key in (b"order-1", b"order-2", b"seat 12A")] == [5, 11, 2]


@given(st.binary(min_size=1, max_size=50), st.binary(max_size=50))
def test_an_envelope_gives_back_key_and_value(key: bytes, value: bytes) -> None:
    assert split_keyed(pack_keyed(key, value)) == Keyed(key, value)
    assert Keyed(key, value).is_tombstone == (value == b"")


def test_an_envelope_is_laid_out_as_written_down() -> None:
    assert pack_keyed(b"foo", b"bar") == bytes.fromhex("01 00000003 666f6f 626172")


@pytest.mark.parametrize(
    "data", [b"", b"\x01\x00\x00\x00\x01", b"\x02\x00\x00\x00\x01a", b"\x01\x00\x00\x00\x02a", b"\x01\xff\xff\xff\xffab", b"\x01\0\0\0\0a"]
)
def test_data_without_a_key_is_recognised(data: bytes) -> None:
    assert split_keyed(data) is None


def test_a_key_too_long_or_empty_is_refused() -> None:
    assert len(pack_keyed(bytes(KEY_BYTES_MAX), b"")) == ENVELOPE_BYTES + KEY_BYTES_MAX
    for key in (b"", bytes(KEY_BYTES_MAX + 1)):
        with pytest.raises(InvalidRequest):
            pack_keyed(key, b"v")
