"""Outboxes in the simulated cluster, under the faults of everything; and the bugs that these runs must catch.

A failing seed is replayed by `pytest "tests/sim/test_outbox_under_faults.py::test_...[SEED]"`; more of them by FIRST_SEED and SEEDS.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.sim.outbox_world import World
from waltz_log.outbox import journal_writer, lane, outbox_identity, session
from waltz_log.outbox.data_run import DataRun, entries_of
from waltz_log.outbox.ledger import Change
from waltz_log.outbox.settle import Settled
from waltz_log.testing.virtual_time import run_in_virtual_time

FIRST = int(os.environ.get("FIRST_SEED", "0"))
SEEDS = range(FIRST, FIRST + int(os.environ.get("SEEDS", "4")))
SEEDS_UNTIL_CAUGHT = 25


def run(seed: int, **world: Any) -> list[tuple[int, bytes]]:
    async def main() -> list[tuple[int, bytes]]:
        async with asyncio.timeout(3600):
            return await World(seed, **world).run()

    return run_in_virtual_time(main())


@pytest.mark.parametrize("seed", SEEDS)
def test_accepted_intents_are_in_the_log_once_when_any_process_dies(seed: int) -> None:
    run(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1200))
def test_accepted_intents_are_in_the_log_once_when_any_process_dies_many_seeds(seed: int) -> None:
    run(seed, lives=8)


def test_the_same_seed_gives_the_same_run() -> None:
    assert run(3) == run(3)


# ---- planted bugs ----------------------------------------------------------------------------------------------------------------------------------


def _acknowledged_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    honest = journal_writer.JournalWriter.write

    async def write(self: journal_writer.JournalWriter, change: Change, reported: Callable[[], None] | None = None) -> None:
        if not change.accepts:
            await honest(self, change, reported)
            return
        self.later(change, lambda: None)
        if reported is not None:
            reported()

    patch.setattr(journal_writer.JournalWriter, "write", write)


def _sent_again_without_asking_the_log(patch: pytest.MonkeyPatch) -> None:
    async def settle(mounting: Any, *_: Any) -> Settled:
        await mounting.mounted()
        return Settled({}, True)

    patch.setattr(lane, "settle", settle)


def _epoch_not_raised(patch: pytest.MonkeyPatch) -> None:
    honest = outbox_identity.claim

    async def claim(*arguments: Any) -> Any:
        return replace(await honest(*arguments), epoch=1)

    patch.setattr(session, "claim", claim)


def _deleted_before_the_answer(patch: pytest.MonkeyPatch) -> None:
    honest = lane.Lane._sending

    async def sending(self: lane.Lane, frames: Any) -> None:
        await honest(self, frames)
        await self._writer.write(Change(deletes=[entry.entry_id for entry in entries_of(frames)]))

    def deliver(self: lane.Lane, outcomes: Any) -> None:
        self._ledger.decided([entry for entry, _ in outcomes])
        self._listener.done(outcomes)
        for entry, _ in outcomes:
            self.finished(entry)

    patch.setattr(lane.Lane, "_sending", sending)
    patch.setattr(lane.Lane, "_deliver", deliver)


def _attempt_written_after_the_sending(patch: pytest.MonkeyPatch) -> None:
    honest = journal_writer.JournalWriter.write

    async def write(self: journal_writer.JournalWriter, change: Change, reported: Callable[[], None] | None = None) -> None:
        if any(kind == 4 for _, kind, _ in change.adds):
            self.later(change, reported or (lambda: None))
        else:
            await honest(self, change, reported)

    patch.setattr(journal_writer.JournalWriter, "write", write)


def _runs_settled_off_by_one(patch: pytest.MonkeyPatch) -> None:
    honest = DataRun.rows_committed

    def committed(self: DataRun, position: int, count: int, transaction_id: int) -> None:
        honest(self, position + (count > 1), count, transaction_id)

    patch.setattr(DataRun, "rows_committed", committed)


def _transaction_ids_of_runs_off_by_one(patch: pytest.MonkeyPatch) -> None:
    honest = DataRun.rows_committed

    def committed(self: DataRun, position: int, count: int, transaction_id: int) -> None:
        honest(self, position, count, transaction_id + (count > 1))

    patch.setattr(DataRun, "rows_committed", committed)


def _attempts_of_runs_off_by_one(patch: pytest.MonkeyPatch) -> None:
    def shifted(frames: Any) -> Any:
        entries = list(entries_of(frames))
        return entries[1:] + entries[:1]

    patch.setattr(lane, "entries_of", shifted)


@pytest.mark.parametrize(
    "plant",
    [
        _acknowledged_before_the_sync,
        _sent_again_without_asking_the_log,
        _epoch_not_raised,
        _deleted_before_the_answer,
        _attempt_written_after_the_sending,
        _runs_settled_off_by_one,
        _transaction_ids_of_runs_off_by_one,
        _attempts_of_runs_off_by_one,
    ],
)
def test_a_planted_bug_is_caught(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=r"twice|lost|not forwarded|lost update|another place"):
        for seed in range(SEEDS_UNTIL_CAUGHT):
            run(seed)
