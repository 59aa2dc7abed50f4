"""Replicas asked where something is: which of them may answer, and how far their word goes."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from waltz_log.errors import ClusterKeyMismatch, ConnectionLost, OutOfRange, SessionTooOld, Unavailable
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.locating import Place, Question, locate


class Replica:
    """A channel to a node that answers as the test says."""

    def __init__(self, *answers: pb.LocateResponse | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[pb.LocateRequest] = []

    async def call(self, method: Any, request: pb.LocateRequest, *, timeout_s: float) -> pb.LocateResponse:
        self.asked.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def response(*positions: int, last: int = 99, size: int = 0, within: int = -1) -> pb.LocateResponse:
    ids = struct.pack(f">{len(positions)}q", *positions)
    return pb.LocateResponse(transaction_ids=ids, replica_last_transaction_id=last, bytes=size, last_within=within)


async def ask(replicas: dict[str, Replica], question: Question, *, partition: int = 0, timeout_s: float = 0.5) -> Place:
    found = await locate(lambda address: replicas[address], {partition: list(replicas)}, b"k" * 16, {partition: question}, timeout_s)  # type: ignore[arg-type,return-value]
    return found[partition]


async def test_the_answer_is_bounded_by_the_committed_mark() -> None:
    a = Replica(response(5, 31, last=40, size=700, within=12))
    found = await ask({"a": a}, Question(2, 20, (1000, 2000), first=3, last=50, max_bytes=400))
    assert found == Place((5, 21), 700, 12)
    assert (a.asked[0].session, a.asked[0].last_transaction_id, a.asked[0].max_bytes) == (2, 20, 400)
    assert struct.unpack(">2q", a.asked[0].times_ms) == (1000, 2000)


async def test_a_replica_that_may_hold_other_transactions_or_holds_too_few_is_passed_over() -> None:
    a = Replica(SessionTooOld(partition=0, asked=3, session=2))
    b = Replica(response(10, last=15))
    c = Replica(response(17, last=20))
    assert (await ask({"a": a, "b": b, "c": c}, Question(3, 20, (1000,)))).positions == (17,)


async def test_replicas_are_asked_again_until_one_can_answer_and_partitions_begin_at_different_ones() -> None:
    a = Replica(ConnectionLost(address="a", reason="down"), ConnectionLost(address="a", reason="down"), response(1))
    b = Replica(response(7, last=3))
    assert (await ask({"a": a, "b": b}, Question(1, 9, (5,)))).positions == (1,)
    assert len(a.asked) == 3
    c, d = Replica(response(1)), Replica(response(2))
    assert (await ask({"c": c, "d": d}, Question(1, 9, (5,)), partition=1)).positions == (2,)


async def test_a_range_that_every_replica_trimmed_is_out_of_range_and_without_replicas_unavailable() -> None:
    gone = OutOfRange(partition=0, asked=2, first=9, last=50)
    with pytest.raises(OutOfRange):
        await ask({"a": Replica(gone), "b": Replica(gone)}, Question(1, 20, first=2, last=20), timeout_s=30)
    with pytest.raises(Unavailable, match="a: connection lost"):
        await ask({"a": Replica(ConnectionLost(address="a", reason="down"))}, Question(1, 20), timeout_s=0.2)
    with pytest.raises(Unavailable, match="no replica is registered"):
        await ask({}, Question(1, 20))
    with pytest.raises(ClusterKeyMismatch):
        await ask({"a": Replica(ClusterKeyMismatch(where="a:1"))}, Question(1, 20), timeout_s=30)
