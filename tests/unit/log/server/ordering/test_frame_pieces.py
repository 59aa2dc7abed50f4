"""A long frame is ordered in pieces, with the same outcome."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waltz_log.core.formats.records import encode_record
from waltz_log.server.ordering import frame_pieces
from waltz_log.server.ordering.frame_pieces import PIECE_LOCKS, PIECE_TRANSACTIONS, UNUSUAL_WEIGHT, LockWeights, is_long, pieces_of
from waltz_log.server.ordering.sequencer import Appender, ReceivedFrame, Sequencer
from waltz_log.transport.large_messages import AppendColumns

CLIENT, GENERATION = 7, 1


def _frame(transactions: list[tuple[int, list[int], list[int]]], appender: Any) -> ReceivedFrame:
    """Of the mark, the write locks and the read locks of each."""
    records = [encode_record(CLIENT, GENERATION, 0, number, 0, bytes(number % 3)) for number in range(1, len(transactions) + 1)]
    locks = [lock for _, writes, reads in transactions for lock in (*writes, *reads)]
    columns = AppendColumns(
        GENERATION,
        struct.pack(f">{len(records)}i", *map(len, records)),
        struct.pack(f">{len(records)}q", *(mark for mark, _, _ in transactions)),
        b"".join(bytes((len(writes), len(reads), 0)) for _, writes, reads in transactions) if locks else b"",
        struct.pack(f">{len(locks)}q", *locks),
        b"".join(records),
        bytes(number % 2 for number in range(len(records))) if locks else b"",
    )
    return ReceivedFrame(cast(Appender, appender), columns)


def _appender() -> Any:
    return SimpleNamespace(client_id=CLIENT, last_sequence=0, on_disk=False, meter=None, quota_refusals=0)


def _decided(pieces: list[ReceivedFrame]) -> tuple[Any, ...]:
    sequencer = Sequencer(0, GENERATION, 10, lock_entries_max=1000, record_bytes_max=1000)
    committed, rejected, records = [], [], b""
    for piece in pieces:
        found = sequencer.sequence([piece], 1)
        assert not found.broken
        committed += [
            (first + at, transaction_id + at) for _, rows in found.committed for first, count, transaction_id in rows for at in range(count)
        ]
        rejected += [(sequence, winner) for _, sequence, winner in found.rejected]
        records += bytes(found.block.records) if found.block is not None else b""
    return committed, rejected, records


LOCKS = st.lists(st.integers(0, 5), max_size=4)


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(5, 14), LOCKS, LOCKS), min_size=1, max_size=20), st.integers(1, 6), st.integers(1, 8))
def test_pieces_are_decided_as_the_whole_frame_is(transactions: list[tuple[int, list[int], list[int]]], most: int, locks_most: int) -> None:
    whole = _decided([_frame(transactions, _appender())])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frame_pieces, "PIECE_TRANSACTIONS", most)
        patch.setattr(frame_pieces, "PIECE_LOCKS", locks_most)
        pieces = list(pieces_of(_frame(transactions, _appender()), LockWeights()))
    assert all(piece.count <= most for piece in pieces)
    assert all(len(piece.locks) // 8 <= locks_most or piece.count == 1 for piece in pieces)
    assert [piece.follows for piece in pieces] == [False] + [True] * (len(pieces) - 1)
    assert _decided(pieces) == whole


def test_the_largest_frame_becomes_pieces_that_are_short() -> None:
    appender = _appender()
    pieces = list(pieces_of(_frame([(10, list(range(at, at + 100)), list(range(at, at + 155))) for at in range(2000)], appender), LockWeights()))
    assert sum(piece.count for piece in pieces) == 2000
    assert not any(is_long(piece.count, LockWeights().cost(piece)) for piece in pieces)
    assert len(list(pieces_of(_frame([(10, [], [])] * (PIECE_TRANSACTIONS + 1), appender), LockWeights()))) == 2
    assert PIECE_LOCKS // UNUSUAL_WEIGHT >= 3 * 255, "one transaction can have that many"


def test_a_lock_of_the_usual_frame_costs_a_quarter() -> None:
    """A frame of one write lock for each transaction is judged in columns, and any other lock by lock."""
    usual = _frame([(10, [at], []) for at in range(PIECE_LOCKS)], _appender())
    unusual = _frame([(10, [at], []) for at in range(PIECE_LOCKS - 1)] + [(10, [], [1])], _appender())
    assert [piece.count for piece in pieces_of(usual, LockWeights())] == [PIECE_LOCKS]
    assert [piece.count for piece in pieces_of(unusual, LockWeights())] == [PIECE_LOCKS // UNUSUAL_WEIGHT] * UNUSUAL_WEIGHT


def test_after_usual_frames_with_conflicts_the_next_pieces_are_small() -> None:
    """One lock that comes twice makes a frame as slow as an unusual one."""
    sequencer, weights = Sequencer(0, GENERATION, 10, lock_entries_max=1 << 20, record_bytes_max=1000), LockWeights()

    def counts(locks: list[int]) -> list[int]:
        found = []
        appender = _appender()
        for piece in pieces_of(_frame([(10, [lock], []) for lock in locks], appender), weights):
            before = sequencer.locks.judged_singly
            assert not sequencer.sequence([piece], 1).broken
            weights.judged(piece.count, sequencer.locks.judged_singly - before)
            found.append(piece.count)
        return found

    small, own = PIECE_LOCKS // UNUSUAL_WEIGHT, list(range(1 << 20, (1 << 20) + 3 * PIECE_LOCKS))
    assert counts([1, *range(PIECE_LOCKS), *range(PIECE_LOCKS)]) == [PIECE_LOCKS] + [small] * 4 + [1]
    assert counts(own) == [small, 2 * small, PIECE_LOCKS, PIECE_LOCKS, small], "they are large again after frames without"


def test_a_frame_whose_columns_do_not_fit_is_left_to_the_sequencer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_pieces, "PIECE_TRANSACTIONS", 1)
    for column, wrong in {"lengths": b"\0", "marks": b"\0", "lock_counts": b"\1", "locks": b"\0" * 8, "own": b"\0", "records": b"x"}.items():
        frame = _frame([(10, [1], [2]), (10, [3], [])], _appender())
        setattr(frame, column, bytes(getattr(frame, column)) + wrong)
        assert list(pieces_of(frame, LockWeights())) == [frame], column
