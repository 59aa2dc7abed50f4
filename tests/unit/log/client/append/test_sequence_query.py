"""What a client keeps of a search that is answered in parts."""

from __future__ import annotations

import asyncio
import struct
from typing import Any
from uuid import UUID

import pytest

from waltz_log.client.append.append_window import AppendWindow
from waltz_log.client.append.packing import pack_checked
from waltz_log.client.append.sequence_query import SequenceQuery
from waltz_log.client.transactions.transaction import Receipt
from waltz_log.core.metadata import ClusterParameters
from waltz_log.errors import ConnectionLost, NotAppended, OutcomeUnknown, ProtocolViolation
from waltz_log.outbox.ledger import Attempt
from waltz_log.outbox.settle import Settled, settle
from waltz_log.testing.virtual_time import run_in_virtual_time
from waltz_log.transport import waltz_pb2 as pb


def _answer(*committed: int, **reported: Any) -> pb.ResolveResponse:
    return pb.ResolveResponse(committed=struct.pack(f">{len(committed)}q", *committed), **reported)


def _search() -> SequenceQuery:
    return SequenceQuery(0, 1, 1, 9, 3, UUID(int=1).bytes, "")


def test_each_question_begins_where_the_last_answer_ended_and_asks_for_less_than_the_deadline() -> None:
    search = _search()
    assert (search.question(2.0).since, search.question(2.0).search_ms) == (3, 1000)
    assert not search.add_answer(_answer(1, 2, 5, more=True, searched_to=20))
    assert search.question(2.0).since == 20
    assert search.add_answer(_answer(4, 1, 30, final=True))
    assert (search.committed, search.final) == ([(1, 2, 5), (4, 1, 30)], True)


def test_a_range_trimmed_in_one_part_is_missing_in_the_whole() -> None:
    search = _search()
    assert not search.add_answer(_answer(more=True, searched_to=20, trimmed=True))
    assert search.add_answer(_answer(final=True))
    assert not search.final


def test_an_answer_that_goes_nowhere_is_a_violation() -> None:
    with pytest.raises(ProtocolViolation, match="made no progress"):
        _search().add_answer(_answer(more=True, searched_to=3))


def test_an_owner_of_an_older_make_is_asked_once() -> None:
    search = _search()
    assert search.add_answer(_answer(final=True, high_water_mark=50))
    assert search.final


def test_an_outbox_goes_on_with_its_search_where_the_connection_broke() -> None:
    answers: list[pb.ResolveResponse | None] = [_answer(1, 1, 5, more=True, searched_to=20), None, _answer(2, 1, 25, final=True)]

    class Owners:
        parameters = ClusterParameters("test", UUID(int=1), 1)

        def __init__(self) -> None:
            self.asked: list[int] = []

        async def owner(self, partition: int, timeout_s: float) -> str:
            return "server"

        def ticket_of(self, client_id: int) -> str:
            return "shown"

        def call_channel(self, address: str) -> Owners:
            return self

        async def call(self, method: object, request: pb.ResolveRequest, timeout_s: float) -> pb.ResolveResponse:
            if isinstance(request, pb.BoundRequest):
                raise AssertionError("the log reaches back far enough")
            assert request.ticket == "shown"
            self.asked.append(request.since)
            answer = answers[len(self.asked) - 1]
            if answer is None:
                raise ConnectionLost(address="server", reason="lost")
            return answer

    class Ready:
        partition = 0

        async def mounted(self) -> None:
            return

    async def main() -> None:
        owners: Any = Owners()
        assert await settle(Ready(), owners, [Attempt(1, 1, 0, 3, 5, (1, 2, 3), 3)], 1, 1.0) == Settled({1: 5, 2: 25}, final=True)
        assert owners.asked == [owners.asked[0], 20, 20]

    run_in_virtual_time(main())


def test_a_part_of_the_log_settles_what_it_holds_and_is_not_searched_again_for_the_rest() -> None:
    async def main() -> None:
        window = AppendWindow(0, max_pending=10, max_pending_bytes=1000, frame_bytes=1000, overlap_bytes=1000)
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[Receipt]] = [loop.create_future() for _ in range(3)]
        for future in futures:
            assert window.try_enqueue(pack_checked(future, b"", 0))
        assert window.pack(1, 1, 4, 0.0) is not None
        window.searched([(1, 1, 7)], 20)
        assert futures[0].result() == Receipt(0, 7, 0)
        window.fail(ConnectionLost(address="server", reason="lost"), 1, NotAppended(partition=0, reason="never sent"))
        for future in futures[1:]:
            unknown = future.exception()
            assert isinstance(unknown, OutcomeUnknown)
            assert unknown.since == 20

    run_in_virtual_time(main())
