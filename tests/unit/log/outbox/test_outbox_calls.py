"""Calls: handlers run on followed state, again after a conflict; keys keep their order; what is given up can be read, edited and sent again."""

from __future__ import annotations

import asyncio
import json
import random
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.log.outbox.bench import FAST, bench, run, until
from waltz_log.client import GiveUp, Intent, Lock, LockConflict, Outbox, Transaction, TransactionContext
from waltz_log.client.append.append_window import AppendWindow
from waltz_log.client.append.pending_rows import UnsentRows
from waltz_log.errors import InvalidRequest, NotAppended
from waltz_log.testing.disk import SimulatedDisk


class Counts:
    """State that an application builds from the log: how often each key was counted."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.runs = 0

    def apply(self, transactions: list[Transaction]) -> None:
        for transaction in transactions:
            event = json.loads(transaction.data)
            self.counts[event["key"]] = event["count"]

    def count(self, tx: TransactionContext, arguments: Any) -> None:
        self.runs += 1
        key = arguments["key"]
        data = json.dumps({"key": key, "count": self.counts.get(key, 0) + 1, "by": arguments["by"]}).encode()
        tx.append(data, write_locks=[Lock("key", key)])

    def register(self, outbox: Outbox) -> Outbox:
        outbox.handler("count")(self.count)
        outbox.follow(0, self.apply)
        return outbox


def counting(number: int, key: str = "k") -> Intent:
    return Intent.call("count", {"key": key, "by": number}, 0)


def test_a_handler_runs_again_on_what_it_missed_when_another_client_was_faster() -> None:
    """Another client counts the same key all the while: only re-execution after catching up keeps the counts dense."""

    async def main() -> None:
        async with bench() as b:
            state, rival = Counts(), await b.cluster.connect(FAST)
            outbox = state.register(b.outbox(SimulatedDisk(), calls_max=4))
            async with outbox:
                seen: dict[str, int] = {}

                def apply(transactions: list[Transaction]) -> None:
                    for transaction in transactions:
                        event = json.loads(transaction.data)
                        seen[event["key"]] = event["count"]

                follower = await rival.follow(0, apply)
                await outbox.submit([counting(number) for number in range(20)])
                for number in range(100, 120):
                    while True:
                        data = json.dumps({"key": "k", "count": seen.get("k", 0) + 1, "by": number}).encode()
                        try:
                            await rival.append(0, data, write_locks=[Lock("key", "k")], high_water_mark=follower.applied)
                            break
                        except LockConflict as conflict:
                            await follower.wait(conflict.winner)
                await outbox.flush()
                assert outbox.dead_letters() == []
            log = [json.loads(data) for data in await b.data(0)]
            assert [event["count"] for event in log] == list(range(1, 41))
            assert sorted(event["by"] for event in log) == [*range(20), *range(100, 120)]
            assert state.runs > 20, "there were conflicts"
            await rival.close()

    run(main)


def test_a_handler_that_gives_up_leaves_a_dead_letter_that_can_be_edited_and_sent_again() -> None:
    async def main() -> None:
        async with bench() as b:
            disk = SimulatedDisk()

            def strict(tx: TransactionContext, arguments: Any) -> None:
                if arguments["amount"] < 0:
                    raise GiveUp("negative amount")
                tx.append(b"%d" % arguments["amount"])

            first = b.outbox(disk)
            first.handler("pay")(strict)
            async with first as outbox:
                good, bad = await outbox.submit([Intent.call("pay", {"amount": 1}, 0), Intent.call("pay", {"amount": -2}, 0)])
                assert (await good.outcome()).transaction_id == 0
                reported = await bad.outcome()
                assert reported.transaction_id is None
                assert reported.dead is not None
                assert (reported.dead.reason, reported.dead.intent_id, reported.dead.tries) == ("negative amount", bad.intent_id, 1)
            again = b.outbox(disk.crash())
            again.handler("pay")(strict)
            async with again as outbox:
                (dead,) = outbox.dead_letters()
                assert dead.intent is not None
                assert dead.intent.arguments == {"amount": -2}
                receipt = await outbox.resubmit(dead.dead_id, Intent.call("pay", {"amount": 2}, 0))
                assert (await receipt.outcome()).transaction_id == 1
                assert outbox.dead_letters() == []
                with pytest.raises(InvalidRequest):
                    await outbox.drop(dead.dead_id)
            assert await b.data(0) == [b"1", b"2"]

    run(main)


def test_a_handler_that_appends_nothing_ends_its_intent_without_a_transaction() -> None:
    async def main() -> None:
        async with bench() as b:
            outbox = b.outbox(SimulatedDisk())
            outbox.handler("nothing")(lambda tx, arguments: None)
            async with outbox:
                (receipt,) = await outbox.submit(Intent.call("nothing", None, 0))
                assert await receipt.outcome() == (None, None)
                assert outbox.statistics().depth == 0

    run(main)


def test_errors_of_a_handler_are_retried_and_then_given_up() -> None:
    async def main() -> None:
        async with bench() as b:
            runs: list[int] = []

            async def broken(tx: TransactionContext, arguments: Any) -> None:
                runs.append(tx.attempt)
                if arguments == "hangs":
                    await asyncio.sleep(1000)
                if arguments == "mends" and tx.attempt == 3:
                    tx.append(b"mended")
                    return
                raise KeyError("x")

            outbox = b.outbox(SimulatedDisk(), attempts_max=4, handler_timeout_s=1)
            outbox.handler("broken")(broken)
            async with outbox:
                receipts = await outbox.submit([Intent.call("broken", text, 0) for text in ("fails", "mends", "hangs")])
                fails, mends, hangs = [await receipt.outcome() for receipt in receipts]
                assert mends.transaction_id == 0
                assert fails.dead is not None
                assert fails.dead.reason == "after 4 attempts: KeyError: 'x'"
                assert hangs.dead is not None
                assert "TimeoutError" in hangs.dead.reason
                assert sorted(runs) == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4]

    run(main)


def test_an_intent_that_kills_its_process_every_time_is_given_up() -> None:
    async def main() -> None:
        async with bench() as b:
            disk = SimulatedDisk()
            for _ in range(3):
                outbox = b.outbox(disk, attempts_max=3)
                started = asyncio.Event()

                async def poison(tx: TransactionContext, arguments: Any, started: asyncio.Event = started) -> None:
                    started.set()
                    await asyncio.sleep(1000)

                outbox.handler("poison")(poison)
                await outbox.start()
                if not outbox.statistics().depth:
                    await outbox.submit(Intent.call("poison", None, 0))
                await started.wait()
                await outbox.abort()
                disk = disk.crash()
            last = b.outbox(disk, attempts_max=3)
            last.handler("poison")(poison)
            async with last as outbox:
                await until(lambda: len(outbox.dead_letters()) == 1)
                assert "the process ended" in outbox.dead_letters()[0].reason

    run(main)


def test_a_call_without_a_handler_is_refused_or_becomes_a_dead_letter_after_a_deployment() -> None:
    async def main() -> None:
        async with bench() as b:
            disk = SimulatedDisk()
            b.reachable = False
            outbox = b.outbox(disk)
            outbox.handler("old")(lambda tx, arguments: None)
            async with outbox:
                with pytest.raises(InvalidRequest, match="no handler"):
                    await outbox.submit(Intent.call("unheard", None, 0))
                await outbox.submit(Intent.call("old", None, 0))
            b.reachable = True
            async with b.outbox(disk) as outbox:
                await until(lambda: len(outbox.dead_letters()) == 1)
                assert outbox.dead_letters()[0].reason == "no handler of this name: old"

    run(main)


def test_a_key_keeps_its_order_and_delays_no_other() -> None:
    async def main() -> None:
        async with bench() as b:
            released = asyncio.Event()

            async def slow(tx: TransactionContext, arguments: Any) -> None:
                if arguments == "a2":
                    await released.wait()
                tx.append(arguments.encode())

            outbox = b.outbox(SimulatedDisk())
            outbox.handler("slow")(slow)
            async with outbox:
                intents = [
                    Intent.data(0, b"a0", key="a"),
                    Intent.data(0, b"a1", key="a"),
                    Intent.call("slow", "a2", 0, key="a"),
                    Intent.data(0, b"a3", key="a"),
                    Intent.call("slow", "a4", 0, key="a"),
                    Intent.data(0, b"b0", key="b"),
                    Intent.call("slow", "b1", 0, key="b"),
                    Intent.data(0, b"free"),
                ]
                receipts = await outbox.submit(intents)
                for receipt in (*receipts[:2], *receipts[5:]):
                    await receipt.outcome()
                assert [receipt.known for receipt in receipts[2:5]] == [None] * 3
                released.set()
                await outbox.flush()
            log = [data.decode() for data in await b.data(0)]
            assert [each for each in log if each[0] == "a"] == ["a0", "a1", "a2", "a3", "a4"]
            assert [each for each in log if each[0] == "b"] == ["b0", "b1"]

    run(main)


def test_a_key_goes_on_in_order_after_a_crash_and_behind_a_dead_letter() -> None:
    async def main() -> None:
        async with bench() as b:
            disk = SimulatedDisk()

            def picky(tx: TransactionContext, arguments: Any) -> None:
                if arguments % 5 == 4:
                    raise GiveUp("every fifth")
                tx.append(b"%d" % arguments)

            def intents() -> list[Intent]:
                return [Intent.call("picky", n, 0, key="k") if n % 3 else Intent.data(0, b"%d" % n, key="k") for n in range(60)]

            outbox = b.outbox(disk)
            outbox.handler("picky")(picky)
            await outbox.start()
            await outbox.submit(intents())
            await until(lambda: outbox.statistics().depth < 45)
            await outbox.abort()
            again = b.outbox(disk.crash())
            again.handler("picky")(picky)
            async with again as outbox:
                await outbox.flush()
                assert len(outbox.dead_letters()) == len([n for n in range(60) if n % 3 and n % 5 == 4])
            assert [int(data) for data in await b.data(0)] == [n for n in range(60) if not (n % 3 and n % 5 == 4)]

    run(main)


def test_an_append_of_a_handler_beyond_the_limits_is_given_up() -> None:
    async def main() -> None:
        async with bench() as b:
            outbox = b.outbox(SimulatedDisk())
            outbox.handler("big")(lambda tx, arguments: tx.append(bytes(2 * 1024 * 1024)))
            outbox.handler("odd")(lambda tx, arguments: tx.append(b"", write_locks=["no lock"]))
            outbox.handler("part")(lambda tx, arguments: tx.append(b"", header=1.5))
            async with outbox:
                receipts = await outbox.submit([Intent.call(name, None, 0) for name in ("big", "odd", "part")])
                assert [(await receipt.outcome()).dead is not None for receipt in receipts] == [True, True, True]

    run(main)


def test_a_follower_whose_application_fails_is_started_again_where_it_stopped() -> None:
    async def main() -> None:
        async with bench() as b:
            failures = [3]
            applied: list[bytes] = []

            def apply(transactions: list[Transaction]) -> None:
                if failures[0]:
                    failures[0] -= 1
                    raise RuntimeError("the database is away")
                applied.extend(transaction.data for transaction in transactions)

            outbox = b.outbox(SimulatedDisk())
            outbox.follow(0, apply)
            outbox.handler("after")(lambda tx, arguments: tx.append(b"%d" % len(applied), write_locks=[Lock("x", 1)]))
            async with outbox:
                await outbox.submit([Intent.data(0, b"first")])
                await until(lambda: applied == [b"first"])
                await outbox.submit(Intent.call("after", None, 0))
                await outbox.flush()
            assert failures == [0]
            assert await b.data(0) == [b"first", b"1"]

    run(main)


def test_a_log_without_room_is_waited_for_and_keys_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server refuses frames while it has no room, and accepts others; none of that counts as an attempt."""
    rng, left = random.Random(5), [12]
    honest = AppendWindow.pack

    def pack(self: AppendWindow, *arguments: Any) -> Any:
        if left[0] and rng.random() < 0.7:
            left[0] -= 1
            self.refuse_unsent()
        return honest(self, *arguments)

    monkeypatch.setattr(AppendWindow, "pack", pack)

    async def main() -> None:
        async with bench() as b:
            outbox = b.outbox(SimulatedDisk(), attempts_max=2)
            outbox.handler("same")(lambda tx, arguments: tx.append(arguments.encode()))
            async with outbox:
                made = [(f"{number} {key}", key) for number in range(40) for key in "ab"]
                await outbox.submit(
                    [Intent.call("same", text, 0, key) if rng.random() < 0.1 else Intent.data(0, text.encode(), key=key) for text, key in made]
                )
                await outbox.flush()
                assert outbox.dead_letters() == []
            assert left == [0]
            log = [data.decode().split() for data in await b.data(0)]
            for wanted in "ab":
                assert [int(number) for number, key in log if key == wanted] == list(range(40))

    run(main)


def test_data_that_the_log_never_accepts_is_given_up_after_its_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a row in the middle of a run: those before and behind it are appended."""
    honest = AppendWindow.pack

    def parts(rows: UnsentRows) -> Iterator[UnsentRows]:
        while rows.count > 1:
            yield rows.cut_rows(1)
        yield rows

    def pack(self: AppendWindow, *arguments: Any) -> Any:
        self.queue = deque(part for unsent in self.queue if isinstance(unsent, UnsentRows) for part in parts(unsent))
        for part in self.queue:
            if isinstance(part, UnsentRows) and part.pending.rows.bodies(part.start, part.stop) == [b"3"]:
                part.fail(NotAppended(partition=0, reason="refused by a test"))
        return honest(self, *arguments)

    monkeypatch.setattr(AppendWindow, "pack", pack)

    async def main() -> None:
        async with bench() as b, b.outbox(SimulatedDisk(), attempts_max=4) as outbox:
            await outbox.submit([Intent.data(0, b"%d" % number, key="k") for number in range(8)])
            await outbox.flush()
            assert await b.data(0) == [b"0", b"1", b"2", b"4", b"5", b"6", b"7"]
            assert "after 4 attempts" in outbox.dead_letters()[0].reason

    run(main)


def test_calls_that_want_one_lock_run_one_after_another_instead_of_repeating() -> None:
    async def main() -> None:
        async with bench() as b:
            state = Counts()
            async with state.register(b.outbox(SimulatedDisk(), calls_max=32)) as outbox:
                await outbox.submit([counting(number) for number in range(100)])
                await outbox.flush()
            assert [json.loads(data)["count"] for data in await b.data(0)] == list(range(1, 101))
            assert state.runs < 180, "with 32 at once, whatever conflicts, the same seed takes 199"

    run(main)
