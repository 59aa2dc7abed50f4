"""One outbox, one directory: copies are refused, a crash while claiming is no copy, used-up sequences get another client id."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.log.outbox.bench import FAST, Bench, bench, run, until
from waltz_log.client import ClientSettings, Intent, Outbox
from waltz_log.errors import OutboxFenced, OutcomeUnknown
from waltz_log.outbox import lane
from waltz_log.testing.disk import SimulatedDisk


async def expect_fenced(outbox: Outbox) -> None:
    await until(lambda: "fenced by a newer epoch" in outbox.statistics().error)
    with pytest.raises(OutboxFenced):
        await outbox.submit(Intent.data(0, b"refused"))


async def forwarded(b: Bench, disk: SimulatedDisk, data: bytes, partition: int = 0) -> None:
    async with b.outbox(disk) as outbox:
        await outbox.submit(Intent.data(partition, data))
        await outbox.flush()


def test_the_client_id_stays_and_the_epoch_rises_with_every_start() -> None:
    async def main() -> None:
        async with bench() as b:
            disk = SimulatedDisk()
            known: list[tuple[int | None, int]] = []
            for number in range(3):
                async with b.outbox(disk) as outbox:
                    await outbox.submit(Intent.data(0, b"%d" % number))
                    await outbox.flush()
                    known.append((outbox.statistics().client_id, outbox.statistics().epoch))
            assert known == [(known[0][0], 1), (known[0][0], 2), (known[0][0], 3)]
            log = await b.log(0)
            assert {transaction.client_id for transaction in log} == {known[0][0]}
            assert [transaction.sequence for transaction in log] == [1, 2, 3]

    run(main)


def test_a_restart_at_a_follower_that_lags_is_no_copy() -> None:
    """The claim of the start before is in the coordinator, and the new session's follower has not heard of it."""

    async def main() -> None:
        async with bench() as b:
            disk = SimulatedDisk()
            b.cluster.ensemble.follower_lag_s = lambda: 2.0
            for number in range(3):
                await forwarded(b, disk, b"%d" % number)
            assert await b.data(0) == [b"0", b"1", b"2"]

    run(main)


def test_a_copy_of_the_directory_is_refused_when_the_other_was_started_since() -> None:
    async def main() -> None:
        async with bench() as b:
            disk = SimulatedDisk()
            await forwarded(b, disk, b"original")
            copy = disk.fork()
            await forwarded(b, disk, b"goes on")
            async with b.outbox(copy) as outbox:
                await expect_fenced(outbox)
            assert await b.data(0) == [b"original", b"goes on"]

    run(main)


def test_a_copy_of_a_running_outbox_is_refused_when_the_other_has_sent_since() -> None:
    """The epochs are the same: what the log holds beyond the copy's own sequences gives it away, before it sends what the other has sent."""

    async def main() -> None:
        async with bench() as b:
            disk = SimulatedDisk()
            await forwarded(b, disk, b"first")
            original = b.outbox(disk)
            await original.start()
            await until(lambda: original.statistics().connected)
            b.network.hold_frames = True
            await original.submit(Intent.data(0, b"only once"))
            await until(lambda: original.statistics().in_doubt == 1)
            await asyncio.sleep(1)
            before_sending = disk.fork()
            b.network.hold_frames = False
            await b.network.deliver()
            await original.submit(Intent.data(0, b"and on"))
            await original.flush()
            await original.abort()
            async with b.outbox(before_sending) as copy:
                await expect_fenced(copy)
            assert await b.data(0) == [b"first", b"only once", b"and on"]

    run(main)


def test_a_copy_is_refused_when_the_other_has_used_partitions_it_never_heard_of() -> None:
    async def main() -> None:
        async with bench() as b:
            disk = SimulatedDisk()
            await forwarded(b, disk, b"first", partition=0)
            async with b.outbox(disk) as original:
                await until(lambda: original.statistics().connected)
                copy = disk.fork()
                await original.submit(Intent.data(1, b"elsewhere"))
                await original.flush()
            async with b.outbox(copy) as outbox:
                await expect_fenced(outbox)

    run(main)


def test_the_older_of_two_running_copies_is_fenced() -> None:
    async def main() -> None:
        async with bench() as b:
            disk = SimulatedDisk()
            older = b.outbox(disk)
            await older.start()
            await older.submit(Intent.data(0, b"older"))
            await older.flush()
            await asyncio.sleep(1)
            async with b.outbox(disk.fork(), seed=1) as newer:
                await newer.submit(Intent.data(0, b"newer"))
                await newer.flush()
                await older.submit(Intent.data(0, b"stays behind"))
                await expect_fenced(older)
                await older.abort()
            assert await b.data(0) == [b"older", b"newer"]

    run(main)


@pytest.mark.parametrize("steps", range(0, 60, 5))
def test_a_crash_while_claiming_does_not_count_as_a_copy(steps: int) -> None:
    """Killed after any number of turns of the event loop, twice over: between journal and coordinator, in every order."""

    async def main() -> None:
        async with bench() as b:
            disk = SimulatedDisk()
            for _ in range(3):
                outbox = b.outbox(disk, seed=steps)
                await outbox.start()
                await outbox.submit(Intent.data(0, b"x"))
                for _ in range(steps):
                    await asyncio.sleep(0)
                await outbox.abort()
                disk = disk.crash()
            async with b.outbox(disk) as last:
                await last.flush()
            assert await b.data(0) == [b"x"] * 3

    run(main)


def test_a_client_that_resolves_for_the_outbox_does_not_stop_it() -> None:
    """A resolve mounts under the client id and fences it in that partition; the next session goes above."""

    async def main() -> None:
        async with bench() as b, b.outbox(SimulatedDisk()) as outbox:
            await outbox.submit(Intent.data(0, b"first"))
            await outbox.flush()
            client_id = outbox.statistics().client_id
            assert client_id is not None
            other = await b.cluster.connect(FAST)
            unknown = OutcomeUnknown(partition=0, client_id=client_id, sequence=1, since=-1, reason="asked by a test")
            found = await other.resolve(unknown)
            assert found is not None
            await other.close()
            await outbox.submit(Intent.data(0, b"second"))
            await outbox.flush()
            assert await b.data(0) == [b"first", b"second"]

    run(main)


def test_sequences_that_are_used_up_are_followed_by_another_client_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane, "SEQUENCES", 100)

    async def main() -> None:
        async with bench() as b:
            disk = SimulatedDisk()
            settings = ClientSettings(retry_base_s=0.01, retry_cap_s=0.1, max_pending=10)
            for start in (0, 150):
                async with b.outbox(disk, client_settings=settings) as outbox:
                    for number in range(start, start + 150):
                        await outbox.submit(Intent.data(number % 2, b"%d" % number))
                    await outbox.flush()
            log = [await b.log(0), await b.log(1)]
            assert [[int(t.data) for t in part] for part in log] == [list(range(0, 300, 2)), list(range(1, 300, 2))]
            assert len({t.client_id for t in log[0]}) >= 2
            for part in log:
                assert len({(t.client_id, t.sequence) for t in part}) == len(part)
                assert max(t.sequence for t in part) < 100

    run(main)


@pytest.mark.parametrize("renewed", [False, True])
def test_an_outbox_settles_what_is_in_doubt_in_a_partition_that_became_a_topics(monkeypatch: pytest.MonkeyPatch, renewed: bool) -> None:
    """An appending mount is refused there with `BelongsToTopic`; what is in the log is reported, and the rest waits. With sequences that are used up
    the other partitions must not wait for it."""
    settings = ClientSettings(retry_base_s=0.01, retry_cap_s=0.1, request_timeout_s=3.0, close_timeout_s=1.0, max_pending=10)

    async def main() -> None:
        async with bench() as b:
            disk = SimulatedDisk()
            earlier = b.outbox(disk, client_settings=settings)
            await earlier.start()
            b.network.hold_answers = True
            await earlier.submit(Intent.data(0, b"in the log"))
            client = await b.cluster.connect(FAST)
            while await client.high_water_mark(0) < 0:
                await asyncio.sleep(0.01)
            b.network.hold_frames = True
            await earlier.submit(Intent.data(0, b"never arrived"))
            await until(lambda: earlier.statistics().in_doubt == 2 and len(b.network.wire) == 1)
            await earlier.abort()
            b.network.wire.clear()
            b.network.hold_answers = b.network.hold_frames = False
            await b.cluster.create_topic("shop/orders", 1, keyed=True, log_partitions=(0,), existing="keep")
            if renewed:
                monkeypatch.setattr(lane, "SEQUENCES", 22)
            later = b.outbox(disk.crash(), client_settings=settings)
            await later.start()
            async with asyncio.timeout(120):
                await until(lambda: later.statistics().in_doubt == 0 and later.statistics().depth == 1)
                await later.submit(Intent.data(1, b"elsewhere"))
                while await client.high_water_mark(1) < 0:
                    await asyncio.sleep(0.01)
            assert later.statistics().dead == 0
            assert (await b.data(0), await b.data(1)) == ([b"in the log"], [b"elsewhere"])
            await later.abort()
            await client.close()

    run(main)
