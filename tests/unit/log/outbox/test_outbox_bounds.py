"""Full, old, on a failing disk: what is refused, what waits, what is never lost."""

from __future__ import annotations

import asyncio
import errno

import pytest

from tests.unit.log.outbox.bench import SMALL, bench, run, until
from waltz_log.client import GiveUp, Intent, TransactionContext
from waltz_log.errors import InvalidRequest, JournalFailed, OutboxFull, TransactionTooLarge
from waltz_log.outbox.statistics import STATISTICS_FILE
from waltz_log.outbox.store import read_statistics
from waltz_log.testing.disk import Operation, SimulatedDisk

LARGE = Intent.data(0, bytes(20_000))
BOUND = 64 * 1024


def test_an_outbox_full_by_bytes_refuses_and_accepts_again_when_the_log_is_back() -> None:
    async def main() -> None:
        async with bench() as b:
            b.reachable = False
            async with b.outbox(SimulatedDisk(), bytes_max=BOUND, when_full="refuse") as outbox:
                await outbox.submit([LARGE] * 3)
                with pytest.raises(OutboxFull, match="bytes_max"):
                    await outbox.submit(LARGE)
                await outbox.submit(Intent.data(0, b"small ones still fit"))
                b.reachable = True
                await outbox.flush()
                await outbox.submit([LARGE] * 3)
                await outbox.flush()
            assert len(await b.log(0)) == 7

    run(main)


def test_full_by_bytes_it_blocks_in_the_order_of_asking_until_the_time_is_over() -> None:
    async def main() -> None:
        async with bench() as b:
            b.reachable = False
            async with b.outbox(SimulatedDisk(), bytes_max=BOUND, submit_timeout_s=5) as outbox:
                await outbox.submit([LARGE] * 3)
                with pytest.raises(OutboxFull):
                    await outbox.submit(LARGE)
                waiting = [asyncio.ensure_future(outbox.submit(Intent.data(0, b"%d" % n + bytes(20_000)), timeout_s=1000)) for n in range(4)]
                await asyncio.sleep(10)
                assert not any(task.done() for task in waiting)
                waiting[1].cancel()
                b.reachable = True
                await asyncio.gather(waiting[0], waiting[2], waiting[3])
                await outbox.flush()
            assert [data[:1] for data in await b.data(0)][3:] == [b"0", b"2", b"3"]

    run(main)


def test_full_by_age_it_refuses_until_the_oldest_is_gone() -> None:
    async def main() -> None:
        async with bench() as b:
            b.reachable = False
            async with b.outbox(SimulatedDisk(), age_max_s=60, when_full="refuse") as outbox:
                await outbox.submit(Intent.data(0, b"old"))
                await asyncio.sleep(50)
                await outbox.submit(Intent.data(0, b"younger"))
                await asyncio.sleep(15)
                with pytest.raises(OutboxFull, match="oldest"):
                    await outbox.submit(Intent.data(0, b"refused"))
                b.reachable = True
                await outbox.flush()
                await outbox.submit(Intent.data(0, b"taken"))
                await outbox.flush()
            assert await b.data(0) == [b"old", b"younger", b"taken"]

    run(main)


def test_an_intent_past_its_age_becomes_a_dead_letter_but_never_one_that_is_in_doubt() -> None:
    async def main() -> None:
        async with bench() as b:
            disk = SimulatedDisk()
            outbox = b.outbox(disk, intent_age_max_s=60)
            await outbox.start()
            b.network.hold_answers = True
            await outbox.submit(Intent.data(0, b"sent in time"))
            await until(lambda: outbox.statistics().in_doubt == 1)
            await outbox.abort()
            b.network.hold_answers = False
            b.reachable = False
            async with b.outbox(disk.crash(), intent_age_max_s=60) as again:
                (late,) = await again.submit(Intent.data(0, b"never sent"))
                await asyncio.sleep(100)
                outcome = await late.outcome()
                assert outcome.dead is not None
                assert outcome.dead.reason == "older than 60 s"
                assert again.statistics().in_doubt == 1
                b.reachable = True
                await again.flush()
                assert [dead.intent_id for dead in again.dead_letters()] == [late.intent_id]
            assert await b.data(0) == [b"sent in time"]

    run(main)


def test_intents_that_wait_for_an_owner_still_expire() -> None:
    """The outbox is connected, and the partition is not served: neither data nor calls are on their way yet."""

    async def main() -> None:
        async with bench(servers=1) as b:
            outbox = b.outbox(SimulatedDisk(), intent_age_max_s=60)
            outbox.handler("late")(lambda tx, arguments: tx.append(b"late"))
            async with outbox:
                await outbox.submit(Intent.data(0, b"served"))
                await outbox.flush()
                await b.cluster.kill_server("server-0")
                await asyncio.sleep(5)
                receipts = await outbox.submit([Intent.data(0, b"late"), Intent.call("late", None, 0)])
                await asyncio.sleep(100)
                assert [receipt.known is not None for receipt in receipts] == [True, True]
                await b.cluster.start_server("server-0")
                await outbox.submit(Intent.data(0, b"served again"))
                await outbox.flush()
                assert len(outbox.dead_letters()) == 2
            assert await b.data(0) == [b"served", b"served again"]

    run(main)


@pytest.mark.parametrize("kind", ["sync", "write"])
def test_nothing_is_acknowledged_on_a_disk_that_fails_and_what_was_accepted_is_not_lost(kind: str) -> None:
    async def main() -> None:
        async with bench() as b:
            b.reachable = False
            disk = SimulatedDisk()
            async with b.outbox(disk) as outbox:
                (kept,) = await outbox.submit(Intent.data(0, b"accepted before"))
                failing = True

                def before(operation: Operation) -> None:
                    if failing and operation.kind == kind and operation.path != f"{STATISTICS_FILE}.tmp":
                        raise OSError(errno.EIO, "input/output error", operation.path)

                disk.before = before
                with pytest.raises(JournalFailed):
                    await outbox.submit(Intent.data(0, b"not acknowledged"))
                with pytest.raises(JournalFailed):
                    await outbox.submit(Intent.data(0, b"refused at once"))
                await asyncio.sleep(5)
                assert outbox.statistics().error
                failing = False
                await until(lambda: outbox.statistics().error == "" or "away" in outbox.statistics().error)
                await outbox.submit(Intent.data(0, b"accepted after"))
                b.reachable = True
                assert (await kept.outcome()).transaction_id is not None
                await outbox.flush()
            found = await b.data(0)
            assert [data for data in found if data.startswith(b"accepted")] == [b"accepted before", b"accepted after"]
            assert b"refused at once" not in found
            assert found.count(b"not acknowledged") <= 1

    run(main)


@pytest.mark.parametrize("total", [400_000, 500_000, 600_000, 777_777])
def test_a_full_disk_is_a_clear_error_and_the_outbox_gets_empty_on_it(total: int) -> None:
    async def main() -> None:
        async with bench() as b:
            b.reachable = False
            disk = SimulatedDisk(total=total)
            async with b.outbox(disk) as outbox:
                accepted = 0
                with pytest.raises(OutboxFull, match="disk is full"):
                    for _ in range(100):
                        await outbox.submit(Intent.data(0, b"%d " % accepted + bytes(20_000)))
                        accepted += 1
                assert accepted > 3
                b.reachable = True
                await outbox.flush()
                await asyncio.sleep(3)
                await outbox.submit(Intent.data(0, b"%d" % accepted))
                await outbox.flush()
            found = [int(data.partition(b" ")[0]) for data in await b.data(0)]
            assert found == list(range(accepted + 1))

    run(main)


def test_an_intent_that_no_log_could_accept_is_refused_before_it_is_written() -> None:
    async def main() -> None:
        async with bench() as b, b.outbox(SimulatedDisk()) as outbox:
            with pytest.raises(TransactionTooLarge, match="what=data"):
                await outbox.submit(Intent.data(0, bytes(2 * 1024 * 1024)))
            with pytest.raises(TransactionTooLarge, match="what=intent"):
                await outbox.submit(Intent.data(0, bytes(60_000), key="k" * 5_000))
            await until(lambda: outbox.statistics().connected)
            with pytest.raises(InvalidRequest, match="no such partition"):
                await outbox.submit(Intent.data(7, b""))
            assert outbox.statistics().depth == 0
            assert await outbox.submit([]) == []

    run(main)


def test_a_partition_that_the_cluster_turns_out_not_to_have_makes_a_dead_letter() -> None:
    async def main() -> None:
        async with bench() as b:
            b.reachable = False
            async with b.outbox(SimulatedDisk()) as outbox:
                (receipt,) = await outbox.submit(Intent.data(7, b"x"))
                b.reachable = True
                outcome = await receipt.outcome()
                assert outcome.dead is not None
                assert "no such partition" in outcome.dead.reason

    run(main)


def test_statistics_stand_in_a_file_for_others_to_read() -> None:
    async def main() -> None:
        async with bench() as b:
            disk = SimulatedDisk()
            b.reachable = False
            async with b.outbox(disk) as outbox:
                await outbox.submit([Intent.data(0, b"x")] * 5)
                await asyncio.sleep(10)
                found = read_statistics(disk)
                assert found is not None
                assert (found.depth, found.submitted, found.connected) == (5, 5, False)
                assert 8 < found.oldest_age_s < 11
                assert "away" in found.error
                b.reachable = True
                await outbox.flush()
                await asyncio.sleep(1.5)
                found = read_statistics(disk)
                assert found is not None
                assert (found.depth, found.forwarded, found.connected, found.error) == (0, 5, True, "")

    run(main)


def test_a_closed_outbox_accepts_nothing_and_keeps_everything_on_disk() -> None:
    async def main() -> None:
        async with bench() as b:
            b.reachable = False
            disk = SimulatedDisk()
            outbox = b.outbox(disk)
            with pytest.raises(InvalidRequest, match="not started"):
                await outbox.submit(Intent.data(0, b"early"))
            await outbox.start()
            await outbox.submit(Intent.data(0, b"kept"))
            await outbox.close()
            with pytest.raises(InvalidRequest, match="closed"):
                await outbox.submit(Intent.data(0, b"late"))
            b.reachable = True
            async with b.outbox(disk) as again:
                await again.flush()
            assert await b.data(0) == [b"kept"]

    run(main)


def test_many_small_intents_and_one_of_the_largest_fit_into_the_smallest_files() -> None:
    async def main() -> None:
        async with bench() as b:
            disk = SimulatedDisk()
            b.reachable = False
            outbox = b.outbox(disk, bytes_max=8 * 1024 * 1024)
            await outbox.start()
            await outbox.submit([Intent.data(0, b"")] * 12_000)
            b.network.hold_answers = True
            b.reachable = True
            await until(lambda: outbox.statistics().in_doubt > 9_000)
            await outbox.abort()
            b.network.hold_answers = False
            again = b.outbox(disk.crash(), bytes_max=8 * 1024 * 1024)

            @again.handler("give up")
            def give_up(tx: TransactionContext, arguments: str) -> None:
                raise GiveUp(arguments)

            async with again:
                await again.flush()
                await again.submit(Intent.call("give up", "x" * (SMALL["file_bytes"] - 5000), 0))
                await again.flush()
                (dead,) = again.dead_letters()
                assert len(dead.reason) == 1000
            assert len(await b.log(0)) == 12_000

    run(main)
