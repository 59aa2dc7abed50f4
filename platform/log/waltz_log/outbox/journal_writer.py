"""Group commit of an outbox's journal: changes that arrive while the disk syncs share the next sync.

Every change is atomic, except that a change of deletes alone may be written in part. `write` returns once its change is on disk. `later` is for
changes whose loss repeats work but breaks nothing; it calls back when they are on disk. The journal is used by one call at a time, off the event
loop. Its first failure is final: no later change is acknowledged, and only the next opening finds out what is on disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

from waltz_log.background_tasks import end_tasks, outcome_of, start_task
from waltz_log.core.ports import Offload
from waltz_log.errors import JournalFailed, JournalFull, WaltzError
from waltz_log.journal import Journal
from waltz_log.outbox.ledger import Change

__all__ = ["JournalWriter", "apply"]

OnDisk: TypeAlias = Callable[[], None]
_Urgent: TypeAlias = "tuple[Change, asyncio.Future[None], OnDisk | None]"

LATER_DELAY_S = 0.05
"""How long a `later` change may wait for a `write` whose sync it can share."""

ROUND_COUNT_MAX = 5_000
"""Records of one round: a round must not delay the following ones for long."""


def apply(journal: Journal, change: Change) -> None:
    """Buffers the change in the journal, all of it or nothing; deletes alone may be buffered one by one."""
    if change.count == 1 or not (change.adds or change.updates):
        for record_id, kind, body in change.adds:
            journal.add(record_id, kind, body)
        for record_id, kind, body in change.updates:
            journal.update(record_id, kind, body)
        for record_id in change.deletes:
            journal.delete(record_id)
        return
    transaction = journal.begin()
    try:
        for record_id, kind, body in change.adds:
            journal.add_in(transaction, record_id, kind, body)
        for record_id, kind, body in change.updates:
            journal.update_in(transaction, record_id, kind, body)
        for record_id in change.deletes:
            journal.delete_in(transaction, record_id)
    except JournalFull:
        journal.rollback(transaction)
        raise
    journal.commit(transaction)


class JournalWriter:
    """`start` makes its one task; `close` writes what is left and ends it."""

    def __init__(self, journal: Journal, offload: Offload, make_space: Callable[[], bool]) -> None:
        self.failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        """Done once the journal has failed."""
        self.syncs = 0
        self._journal = journal
        self._offload = offload
        self._make_space = make_space
        self._urgent: list[_Urgent] = []
        self._in_round: list[_Urgent] = []
        """What is being written, or was written last."""
        self._later: list[tuple[Change, OnDisk]] = []
        self._work = asyncio.Event()
        self._closing = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = start_task(self._run(), name="waltz outbox journal")
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Others cancelled it, or it has a defect: the journal is opened again."""
        if self._closing or self.failed.done():
            return
        try:
            outcome_of(task)
        except Exception as error:
            self._fail(JournalFailed(reason=str(error)), self._in_round)

    async def write(self, change: Change, on_disk: OnDisk | None = None) -> None:
        """Returns when the change is on disk. `on_disk` is called then, even if the caller was cancelled meanwhile. Raises `JournalFull`: nothing was
        written; or the error of the journal: then the change may be on disk or not."""
        if self.failed.done():
            raise self.failed.result()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._urgent.append((change, done, on_disk))
        self._work.set()
        await done

    def later(self, change: Change, on_disk: OnDisk) -> None:
        """Writes the change with the next round; `on_disk` is called once it is on disk."""
        self._later.append((change, on_disk))
        self._work.set()

    async def close(self) -> None:
        """Writes what is left, unless the journal failed."""
        self._closing = True
        self._work.set()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    async def abort(self) -> None:
        """Ends immediately. What was not written is lost, as after a crash. Waits for a call that runs on a thread."""
        self._closing = True
        if self._task is not None:
            await end_tasks([self._task])

    async def _run(self) -> None:
        while True:
            if not self._urgent and not self._later:
                if self._closing:
                    return
                self._work.clear()
                await self._work.wait()
                continue
            if not self._urgent and not self._closing:
                await self._gather()
            urgent, later = self._next_round()
            self._in_round = urgent
            try:
                refused = await self._round([*(change for change, _ in later), *(change for change, _, _ in urgent)])
            except (WaltzError, OSError) as error:
                self._fail(error, urgent)
                return
            full = next((error for error in refused[: len(later)] if error is not None), None)
            if full is not None:  # what the ledger holds is not what the journal holds any more
                self._fail(full, urgent)
                return
            for _, on_disk in later:
                on_disk()
            for each, why in zip(urgent, refused[len(later) :], strict=True):
                _complete(each, why)

    async def _gather(self) -> None:
        """Waits a moment for a `write` whose sync the `later` changes can share."""
        self._work.clear()
        try:
            async with asyncio.timeout(LATER_DELAY_S):
                while not self._urgent and not self._closing:
                    await self._work.wait()
                    self._work.clear()
        except TimeoutError:
            return

    def _next_round(self) -> tuple[list[_Urgent], list[tuple[Change, OnDisk]]]:
        later, self._later = self._later, []
        count = sum(change.count for change, _ in later)
        count_urgent = 0
        while count_urgent < len(self._urgent) and (count_urgent == 0 or count < ROUND_COUNT_MAX):
            count += self._urgent[count_urgent][0].count
            count_urgent += 1
        urgent, self._urgent = self._urgent[:count_urgent], self._urgent[count_urgent:]
        return urgent, later

    async def _round(self, changes: list[Change]) -> list[JournalFull | None]:
        # Shielded: a cancelled task must not leave a thread behind that goes on writing.
        call = start_task(self._offload(self._write, changes))
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            await asyncio.gather(call, return_exceptions=True)
            raise

    def _write(self, changes: list[Change]) -> list[JournalFull | None]:
        refused: list[JournalFull | None] = []
        for change in changes:
            try:
                self._apply(change)
                refused.append(None)
            except JournalFull as error:
                refused.append(error)
        self._journal.sync()
        self.syncs += 1
        return refused

    def _apply(self, change: Change) -> None:
        try:
            apply(self._journal, change)
        except JournalFull:
            if change.accepts or not self._make_space():
                raise
            apply(self._journal, change)

    def _fail(self, error: WaltzError | OSError, urgent: list[_Urgent]) -> None:
        self.failed.set_result(error)
        for _, done, _ in (*urgent, *self._urgent):
            if not done.done():
                done.set_exception(error)
        self._urgent.clear()
        self._later.clear()


def _complete(urgent: _Urgent, refused: JournalFull | None) -> None:
    _, done, on_disk = urgent
    if refused is None and on_disk is not None:
        on_disk()
    if done.done():
        return
    if refused is None:
        done.set_result(None)
    else:
        done.set_exception(refused)
