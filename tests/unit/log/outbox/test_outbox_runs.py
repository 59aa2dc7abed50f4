"""Data is handed to the producer in runs: order, outcomes of each intent, bounds of the window, and crashes in the middle of a run."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from tests.unit.log.outbox.bench import FAST, Bench, bench, run
from waltz_log.client import ClientSettings, Intent
from waltz_log.client.append.append_window import AppendWindow
from waltz_log.client.append.sent_frame import SentAppends, SentRows
from waltz_log.outbox.data_run import DataRun
from waltz_log.testing.disk import SimulatedDisk

SMALL_FRAMES = FAST.model_copy(update={"frame_bytes": 4096})
COUNT = 400


def intents(count: int = COUNT, seed: int = 1) -> list[Intent]:
    """No two have the same data; lengths and headers vary."""
    rng = random.Random(seed)
    return [Intent.data(0, b"%d %s" % (n, rng.randbytes(rng.randrange(150))), rng.randrange(-2, 2), rng.choice((None, "k"))) for n in range(count)]


async def forward(b: Bench, made: list[Intent], settings: ClientSettings) -> None:
    """Each receipt has the id under which the log has that intent."""
    async with b.outbox(SimulatedDisk(), client_settings=settings) as outbox:
        receipts = await outbox.submit(made)
        await outbox.flush()
        assert outbox.statistics().forwarded == len(made)
        reported = [(await receipt.outcome()).transaction_id or 0 for receipt in receipts]
    log = {each.transaction_id: (each.data, each.header) for each in await b.log(0)}
    assert [log.get(found) for found in reported] == [(each.payload, each.header) for each in made]
    assert reported == sorted(reported)


@pytest.mark.parametrize(
    "settings",
    [SMALL_FRAMES, FAST, FAST.model_copy(update={"max_pending": 7}), FAST.model_copy(update={"max_pending_bytes": 4096})],
    ids=["frames cut runs", "one frame", "few pending", "few bytes pending"],
)
def test_each_intent_of_a_run_gets_its_own_outcome_in_the_order_of_submission(settings: ClientSettings) -> None:
    async def main() -> None:
        async with bench() as b:
            await forward(b, intents(), settings)

    run(main)


@pytest.mark.parametrize("by", [1, -1])
def test_outcomes_that_are_shifted_by_one_are_noticed(by: int, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = DataRun.rows_committed
    monkeypatch.setattr(DataRun, "rows_committed", lambda self, position, count, first: honest(self, position, count, first + by))

    async def main() -> None:
        async with bench() as b:
            with pytest.raises(AssertionError):
                await forward(b, intents(), SMALL_FRAMES)

    run(main)


def test_data_makes_no_future_for_each_intent_and_the_window_keeps_its_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    parts: list[SentAppends | SentRows] = []
    pending: list[int] = []
    honest = AppendWindow.pack

    def pack(self: AppendWindow, *arguments: Any) -> Any:
        pending.append(self.pending)
        frame = honest(self, *arguments)
        parts.extend(self.frames[-1].parts if frame is not None else ())
        return frame

    monkeypatch.setattr(AppendWindow, "pack", pack)

    async def main() -> None:
        async with bench() as b:
            await forward(b, intents(), FAST.model_copy(update={"max_pending": 50}))

    run(main)
    assert {type(part) for part in parts} == {SentRows}
    assert max(pending) == 50


def test_one_intent_above_the_bytes_of_the_window_is_sent_alone() -> None:
    async def main() -> None:
        async with bench() as b:
            large = [Intent.data(0, b"%d" % number * 5000) for number in range(3)]
            await forward(b, large, FAST.model_copy(update={"max_pending_bytes": 4096}))

    run(main)


def test_traced_intents_go_alone_and_keep_their_place_among_runs() -> None:
    async def main() -> None:
        async with bench() as b:
            b.reachable = False
            async with b.outbox(SimulatedDisk(), client_settings=FAST.model_copy(update={"tracing": True, "max_pending": 3})) as outbox:
                for number in range(30):
                    context = SpanContext(number + 1, 1, is_remote=False, trace_flags=TraceFlags(int(number % 4 == 1)))
                    with trace.use_span(NonRecordingSpan(context)):
                        await outbox.submit(Intent.data(0, b"%d" % number))
                b.reachable = True
                await outbox.flush()
            assert await b.data(0) == [b"%d" % number for number in range(30)]

    run(main)


@pytest.mark.parametrize("arrived", [False, True], ids=["the rest of the run is on the wire", "the rest of the run is in the log"])
def test_killed_in_the_middle_of_a_run_the_next_start_loses_and_repeats_nothing(arrived: bool) -> None:
    """Some frames of the run are answered, some are sent, some rows are not sent at all."""

    async def main() -> None:
        async with bench() as b:
            disk, made = SimulatedDisk(), intents()
            outbox = b.outbox(disk, client_settings=SMALL_FRAMES.model_copy(update={"max_pending": COUNT // 2}))
            await outbox.start()
            await (await outbox.submit(Intent.data(0, b"mounts")))[0].outcome()
            receipts = await outbox.submit(made)
            while receipts[0].known is None:
                await asyncio.sleep(0)
            if arrived:
                b.network.hold_answers = True
            else:
                b.network.hold_frames = b.network.outlive = True
            for _ in range(40):
                await asyncio.sleep(0)
            assert arrived or b.network.wire
            await outbox.abort()
            statistics = outbox.statistics()
            assert 0 < statistics.in_doubt < statistics.depth < COUNT
            b.network.hold_answers = b.network.hold_frames = b.network.outlive = False
            async with b.outbox(disk.crash(), client_settings=SMALL_FRAMES) as again:
                await again.flush()
                await b.network.deliver()  # what a dead process left on the wire arrives late
                await (await again.submit(Intent.data(0, b"last")))[0].outcome()
            assert await b.data(0) == [b"mounts", *(each.payload for each in made), b"last"]

    run(main)
