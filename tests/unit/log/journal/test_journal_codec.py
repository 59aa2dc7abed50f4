"""The bytes of records: the documented vectors, every cut, every flipped bit, holes, and what imitates a record."""

from __future__ import annotations

from random import Random

import pytest

from waltz_log.journal.record_codec import (
    ADD,
    ADD_TX,
    BODY_OVERHEAD_BYTES,
    COMMIT,
    DELETE,
    DELETE_TX,
    DELETE_TX_BYTES,
    FILL,
    PREPARE,
    ROLLBACK,
    TX_BODY_OVERHEAD_BYTES,
    UNHEALTHY,
    UPDATE,
    UPDATE_TX,
    Record,
    check_seed,
    encode_adds,
    encode_body,
    encode_delete,
    encode_rollback,
    encode_summary,
    record_at,
    record_bytes,
    scan,
    summary_bytes,
)

FILE = 7
HEADER = FILE.to_bytes(4, "big")
SEED = check_seed(b"a salt of 16 b..", FILE)
SEEDS = [pytest.param(None, id="size"), pytest.param(SEED, id="hash")]


def one_of_each(seed: int | None) -> list[bytes]:
    return [
        encode_body(ADD, FILE, seed, 1, 2, b"abc"),
        encode_body(UPDATE, FILE, seed, 1, 255, b""),
        encode_body(ADD_TX, FILE, seed, 1, 2, b"abc", 9),
        encode_body(UPDATE_TX, FILE, seed, (1 << 63) - 1, 2, bytes(301), 9),
        encode_delete(FILE, seed, 1, 9),
        encode_delete(FILE, seed, 1),
        encode_summary(PREPARE, FILE, seed, 9, []),
        encode_summary(COMMIT, FILE, seed, 9, [(6, 2), (7, 3)]),
        encode_rollback(FILE, seed, 9),
    ]


def healthy(data: bytes, seed: int | None) -> list[Record]:
    return [record for record in scan(data, FILE, seed) if record.kind != UNHEALTHY]


def test_the_vectors_of_the_layout() -> None:
    add, _, add_tx, _, _, delete, _, commit, rollback = (record.hex() for record in one_of_each(None))
    assert add == "0b000000070000000000000001000000030261626300000019"
    assert add_tx == "0d0000000700000000000000090000000000000001000000030261626300000021"
    assert delete == "1000000007000000000000000100000011"
    assert rollback == "1300000007000000000000000900000011"
    assert commit == "12000000070000000000000009000000020000000600000002000000070000000300000025"
    assert encode_delete(FILE, None, 1, 9).hex() == "0f000000070000000000000009000000000000000100000019"
    assert encode_adds(FILE, None, [(1, 2, b"abc")]) == [bytes.fromhex(add)]


@pytest.mark.parametrize("seed", SEEDS)
def test_sizes_are_what_is_counted_with(seed: int | None) -> None:
    add, _, add_tx, _, delete_tx, _, prepare, commit, _ = one_of_each(seed)
    assert (len(add), len(add_tx), len(delete_tx)) == (BODY_OVERHEAD_BYTES + 3, TX_BODY_OVERHEAD_BYTES + 3, DELETE_TX_BYTES)
    assert (len(prepare), len(commit)) == (summary_bytes(0), summary_bytes(2))
    for record in one_of_each(seed):
        if record[0] in (ADD, UPDATE, ADD_TX, UPDATE_TX):
            assert record_bytes(record[:30]) == max(len(record), 30) or len(record) < 30


@pytest.mark.parametrize("seed", SEEDS)
def test_written_records_are_read_back_at_any_position(seed: int | None) -> None:
    records = one_of_each(seed)
    expected = [
        (ADD, 0, 1, 2, b"abc", ()),
        (UPDATE, 0, 1, 255, b"", ()),
        (ADD_TX, 9, 1, 2, b"abc", ()),
        (UPDATE_TX, 9, (1 << 63) - 1, 2, bytes(301), ()),
        (DELETE_TX, 9, 1, 0, b"", ()),
        (DELETE, 0, 1, 0, b"", ()),
        (PREPARE, 9, -1, 0, b"", ()),
        (COMMIT, 9, -1, 0, b"", ((6, 2), (7, 3))),
        (ROLLBACK, 9, -1, 0, b"", ()),
    ]
    for gap in (b"", FILL * 5, b"\x0b\x12\x13", HEADER, b"\x0b" + HEADER[:3]):
        data = HEADER + gap + gap.join(records) + gap
        found = healthy(data, seed)
        assert [(r.kind, r.transaction_id, r.record_id, r.user_type, r.body, r.counts) for r in found] == expected
        assert [data[r.offset : r.end] for r in found] == records
        assert all(record_at(data, r.offset, FILE, seed) == r for r in found)


@pytest.mark.parametrize("seed", SEEDS)
def test_runs_of_adds_of_any_lengths_are_read_like_single_ones(seed: int | None) -> None:
    random = Random(1)
    for _ in range(50):
        bodies = [random.randbytes(random.choice((0, 1, 7, 7, 7, 300))) for _ in range(random.randrange(1, 30))]
        adds = encode_adds(FILE, seed, [(n, n % 256, body) for n, body in enumerate(bodies)])
        assert adds == [encode_body(ADD, FILE, seed, n, n % 256, body) for n, body in enumerate(bodies)]
        found = healthy(HEADER + b"".join(adds), seed)
        assert [(r.record_id, r.user_type, r.body) for r in found] == [(n, n % 256, body) for n, body in enumerate(bodies)]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_record_cut_anywhere_is_none_and_hides_nothing(seed: int | None) -> None:
    after = encode_body(ADD, FILE, seed, 5, 5, b"after")  # no length here ends in the byte that files are filled with
    for record in one_of_each(seed):
        for kept in range(len(record)):
            assert healthy(HEADER + record[:kept], seed) == []
            found = healthy(HEADER + record[:kept] + FILL * len(record) + after, seed)
            assert [r.record_id for r in found] == [5]


def test_no_flipped_bit_passes_the_hash() -> None:
    flips = 0
    for record in [*one_of_each(SEED), encode_body(ADD, FILE, SEED, 3, 4, Random(2).randbytes(1200))]:
        for bit in range(8 * len(record)):
            changed = bytearray(record)
            changed[bit // 8] ^= 1 << bit % 8
            assert healthy(HEADER + bytes(changed), SEED) == []
            flips += 1
    assert flips >= 10_000


def test_a_length_does_not_notice_a_torn_body_and_a_hash_does() -> None:
    for seed, noticed in ((None, False), (SEED, True)):
        record = bytearray(encode_body(ADD, FILE, seed, 1, 1, b"x" * 600))
        record[30:542] = b"y" * 512
        assert (healthy(HEADER + bytes(record), seed) == []) is noticed


def test_a_payload_that_imitates_a_record_is_read_by_size_and_not_by_hash() -> None:
    forged = encode_delete(FILE, None, 42)
    another = check_seed(b"another 16 bytes", FILE)
    guesses = [forged, forged[:-4] + bytes(4), *(encode_delete(FILE, seed, 42) for seed in (0, another))]
    guesses += [encode_body(kind, FILE, seed, 42, 1, b"forged") for kind in (ADD, UPDATE) for seed in (None, 0, another)]
    for guess in guesses:
        carrier = bytearray(encode_body(ADD, FILE, SEED, 1, 1, guess))
        carrier[5] ^= 1  # the record around it is not healthy, so what is in its body is read
        assert healthy(HEADER + bytes(carrier), SEED) == []
    carrier = bytearray(encode_body(ADD, FILE, None, 1, 1, forged))
    carrier[-1] ^= 1
    assert [record.record_id for record in healthy(HEADER + bytes(carrier), None)] == [42]


def test_records_of_another_use_of_the_file_are_not_seen() -> None:
    salt = b"a salt of 16 b.."
    stale = encode_adds(6, check_seed(salt, 6), [(1, 1, b"stale")])
    relabelled = bytearray(encode_delete(6, check_seed(salt, 6), 1))
    relabelled[1:5] = HEADER
    fresh = encode_delete(FILE, check_seed(salt, FILE), 1)
    data = HEADER + fresh + stale[0] + bytes(relabelled)
    assert [record.kind for record in healthy(data, check_seed(salt, FILE))] == [DELETE]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("size", [-1, 1 << 20, (1 << 31) - 1])
def test_sizes_beyond_the_file_or_negative_are_refused(seed: int | None, size: int) -> None:
    add = bytearray(encode_body(ADD, FILE, seed, 1, 1, b"abc"))
    add[13:17] = size.to_bytes(4, "big", signed=True)
    commit = bytearray(encode_summary(COMMIT, FILE, seed, 9, [(6, 2)]))
    commit[13:17] = size.to_bytes(4, "big", signed=True)
    assert healthy(HEADER + bytes(add) + bytes(commit), seed) == []
    assert record_bytes(bytes(add)) >= len(add)


def test_an_unhealthy_place_is_reported() -> None:
    add = encode_body(ADD, FILE, SEED, 1, 1, b"abc")
    found = list(scan(HEADER + add[:10] + FILL * 20 + add, FILE, SEED))
    assert [(record.kind, record.offset) for record in found] == [(UNHEALTHY, 4), (ADD, 34)]
