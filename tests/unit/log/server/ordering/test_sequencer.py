from __future__ import annotations

import struct
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz_log.core.formats.columns import FEW_RECORDS, verify_records
from waltz_log.core.formats.records import encode_record
from waltz_log.core.quotas import Meter, Refusal
from waltz_log.errors import WaltzError
from waltz_log.server.ordering.sequencer import Answers, ReceivedFrame, Sequencer
from waltz_log.transport import waltz_pb2 as pb


class _Client:
    def __init__(self, client_id: int = 7) -> None:
        self.client_id = client_id
        self.last_sequence = -1
        self.on_disk = False
        self.meter: Meter | None = None
        self.quota_refusals = 0

    def answer(self, answers: Answers, append_time_ms: int) -> None:
        raise AssertionError("the sequencer only says what to answer")

    def refuse_over_quota(self, sequence: int, refusal: Refusal) -> None:
        raise AssertionError("no quota applies")

    def fail(self, error: WaltzError) -> None:
        raise AssertionError("the sequencer only says whom to end")


def _frame(
    client: _Client, rows: list[tuple[int, bytes, int, list[int]]], *, generation: int = 2, partition: int = 3, locks: bool = True
) -> ReceivedFrame:
    """Rows of (sequence, data, mark, write locks)."""
    records = [encode_record(client.client_id, generation, partition, sequence, 0, data) for sequence, data, _, _ in rows]
    message = pb.AppendFrame(
        generation=generation,
        lengths=struct.pack(f">{len(rows)}i", *map(len, records)),
        marks=struct.pack(f">{len(rows)}q", *(row[2] for row in rows)),
        lock_counts=b"".join(bytes([len(row[3]), 0, 0]) for row in rows) if locks else b"",
        locks=b"".join(struct.pack(">q", lock) for row in rows for lock in row[3]) if locks else b"",
        records=b"".join(records),
    )
    return ReceivedFrame(client, message)


def _sequencer(mark: int = 99) -> Sequencer:
    return Sequencer(3, 2, mark, lock_entries_max=1000, record_bytes_max=1000)


def test_frames_of_several_clients_become_one_block_with_dense_ids() -> None:
    one, two = _Client(7), _Client(8)
    result = _sequencer().sequence([_frame(one, [(0, b"a", 99, []), (1, b"bb", 99, [])]), _frame(two, [(5, b"ccc", 99, [])])], 1234)
    assert result.block is not None
    verify_records(result.block.records, result.block.lengths, first_transaction_id=100, partition=3, where="test")
    assert (result.block.first_transaction_id, result.block.count, result.block.append_time_ms) == (100, 3, 1234)
    assert result.committed == [(one, [(0, 2, 100)]), (two, [(5, 1, 102)])]


def test_a_rejected_transaction_leaves_no_gap_and_names_its_winner() -> None:
    client = _Client()
    sequencer = _sequencer()
    result = sequencer.sequence([_frame(client, [(0, b"a", 99, [1]), (1, b"b", 99, [1]), (2, b"c", 99, [2])])], 0)
    assert result.rejected == [(client, 1, 100)]
    assert result.committed == [(client, [(0, 1, 100), (2, 1, 101)])]
    assert result.block is not None
    verify_records(result.block.records, result.block.lengths, first_transaction_id=100, partition=3, where="test")
    assert sequencer.next_id == 102


def test_everything_rejected_makes_no_block() -> None:
    client = _Client()
    result = _sequencer().sequence([_frame(client, [(0, b"a", 98, [1])])], 0)
    assert result.block is None
    assert result.rejected == [(client, 0, 99)]


def test_a_sequence_that_was_there_before_is_refused_as_duplicate_and_the_rest_goes_on() -> None:
    client = _Client()
    sequencer = _sequencer()
    sequencer.sequence([_frame(client, [(0, b"a", 99, []), (1, b"b", 99, [])])], 0)
    result = sequencer.sequence([_frame(client, [(1, b"b", 99, [4]), (2, b"c", 99, [5])])], 0)
    assert result.refused == [(client, [(1, pb.REFUSAL_DUPLICATE)])]
    assert result.committed == [(client, [(2, 1, 102)])]
    assert sequencer.locks.last_writer(4) == 99
    assert sequencer.locks.last_writer(5) == 102


def test_a_frame_of_another_generation_is_refused_with_an_answer_for_every_transaction() -> None:
    client = _Client()
    result = _sequencer().sequence([_frame(client, [(0, b"a", 99, []), (1, b"b", 99, [])], generation=1)], 0)
    assert result.refused == [(client, [(0, pb.REFUSAL_GENERATION), (1, pb.REFUSAL_GENERATION)])]
    assert result.block is None


def test_a_record_above_the_limit_is_refused_alone() -> None:
    client = _Client()
    result = _sequencer().sequence([_frame(client, [(0, b"a" * 1001, 99, [1]), (1, b"b", 99, [1])])], 0)
    assert result.refused == [(client, [(0, pb.REFUSAL_TOO_LARGE)])]
    assert result.committed == [(client, [(1, 1, 100)])]


def test_corruption_a_foreign_client_and_torn_columns_end_only_their_own_stream() -> None:
    bad = _Client(8)
    corrupted = _frame(bad, [(0, b"abc", 99, [])])
    corrupted.records = bytes(corrupted.records[:-1]) + bytes([corrupted.records[-1] ^ 1])
    foreign = _frame(_Client(9), [(0, b"abc", 99, [])])
    foreign.appender = bad
    torn = _frame(bad, [(0, b"abc", 99, [1])])
    torn.locks = torn.locks[:-1]
    for frame in (corrupted, foreign, torn, _frame(bad, [(0, b"a", 99, [])], partition=4)):
        good = _Client(7)
        result = _sequencer().sequence([frame, _frame(good, [(0, b"x", 99, [])])], 0)
        assert [appender for appender, _ in result.broken] == [bad]
        assert result.committed == [(good, [(0, 1, 100)])]


ROWS = st.lists(
    st.tuples(
        st.integers(0, 12), st.sampled_from([b"", b"a", b"bb" * 40, b"c" * 1001]), st.integers(90, 110), st.lists(st.integers(0, 5), max_size=2)
    ),
    min_size=1,
    max_size=6,
)
FRAMES = st.lists(st.tuples(ROWS, st.sampled_from([7, 7, 7, 8]), st.sampled_from([2, 2, 2, 1]), st.booleans()), min_size=1, max_size=6)


def _outcome(frames: list[tuple[list[tuple[int, bytes, int, list[int]]], int, int, bool]], few: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("waltz_log.server.ordering.sequencer.FEW_RECORDS", few)
    sequencer, clients = _sequencer(), {number: _Client(number) for number in (7, 8)}
    outcomes = []
    for rows, number, generation, in_order in frames:
        made = _frame(clients[number], sorted(rows) if in_order else rows, generation=generation)
        if rows[0][0] == 12:
            made.appender = clients[15 - number]  # who is not who wrote the records
        if rows[0][0] == 11:
            made.generation = 2  # whatever the records say
        result = sequencer.sequence([made], 5)
        reported = {name: [(appender.client_id, *rest) for appender, *rest in getattr(result, name)] for name in ("committed", "rejected", "refused")}
        broken = [(appender.client_id, str(error)) for appender, error in result.broken]
        block = None if result.block is None else asdict(result.block)
        outcomes.append(
            (reported, broken, block, result.holders, sequencer.next_id, {each.client_id: each.last_sequence for each in clients.values()})
        )
    return outcomes


@given(FRAMES)
def test_small_frames_are_judged_as_large_ones_are(frames: list[tuple[list[tuple[int, bytes, int, list[int]]], int, int, bool]]) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        assert _outcome(frames, FEW_RECORDS, monkeypatch) == _outcome(frames, 0, monkeypatch)
