"""What is accepted is in the log once, whatever dies between the submit and the answer."""

from __future__ import annotations

import asyncio
import random
import struct
from uuid import UUID

import pytest

from tests.unit.log.outbox.bench import FAST, bench, run, until
from waltz_log.client import Intent, Outbox
from waltz_log.core.metadata import ClusterParameters
from waltz_log.core.ports import AnyMethod
from waltz_log.errors import InvalidRequest
from waltz_log.outbox import lane
from waltz_log.outbox.ledger import Attempt
from waltz_log.outbox.settle import Settled, settle
from waltz_log.testing.disk import SimulatedDisk
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.methods import RESOLVE


def numbered(count: int, partition: int = 0) -> list[Intent]:
    return [Intent.data(partition, b"%d" % number) for number in range(count)]


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def test_a_submitted_intent_is_in_the_log_once_and_its_outcome_can_be_awaited() -> None:
    async def main() -> None:
        async with bench() as b, b.outbox(SimulatedDisk()) as outbox:
            receipts = await outbox.submit([Intent.data(0, b"a", header=3), Intent.data(1, b"b"), Intent.data(0, b"c")])
            outcomes = [await receipt.outcome() for receipt in receipts]
            assert [outcome.transaction_id for outcome in outcomes] == [0, 0, 1]
            assert [(t.data, t.header) for t in await b.log(0)] == [(b"a", 3), (b"c", 0)]
            assert await b.data(1) == [b"b"]
            await outbox.flush()
            statistics = outbox.statistics()
            assert (statistics.depth, statistics.forwarded, statistics.in_doubt, statistics.size_bytes) == (0, 3, 0, 0)

    run(main)


def test_submits_need_no_cluster_not_even_the_first_time() -> None:
    async def main() -> None:
        async with bench() as b:
            b.reachable = False
            async with b.outbox(SimulatedDisk()) as outbox:
                await outbox.submit(numbered(10))
                assert outbox.statistics().client_id is None
                assert outbox.statistics().depth == 10
                b.reachable = True
                await outbox.flush()
                assert await b.data(0) == numbers(10)

    run(main)


def test_accepted_intents_survive_a_crash_of_the_machine() -> None:
    async def main() -> None:
        async with bench() as b:
            b.reachable = False
            disk = SimulatedDisk()
            outbox = b.outbox(disk)
            await outbox.start()
            await outbox.submit([Intent.data(0, b"x"), Intent.data(1, b"y")])
            await outbox.abort()
            b.reachable = True
            async with b.outbox(disk.crash()) as again:
                await again.flush()
            assert await b.data(0) == [b"x"]
            assert await b.data(1) == [b"y"]

    run(main)


def test_a_second_process_on_the_directory_is_refused() -> None:
    async def main() -> None:
        async with bench() as b:
            disk = SimulatedDisk()
            async with b.outbox(disk):
                with pytest.raises(InvalidRequest, match="another process"):
                    await b.outbox(disk).start()

    run(main)


def test_killed_between_send_and_answer_the_next_start_finds_it_in_the_log_and_sends_nothing_again() -> None:
    async def main() -> None:
        async with bench() as b:
            disk = SimulatedDisk()
            outbox = b.outbox(disk)
            await outbox.start()
            await (await outbox.submit(Intent.data(0, b"first")))[0].outcome()
            b.network.hold_answers = True
            await outbox.submit(numbered(20))
            await until(lambda: outbox.statistics().in_doubt == 20)
            await asyncio.sleep(1)
            await outbox.abort()
            b.network.hold_answers = False
            assert await b.data(0) == [b"first", *numbers(20)], "in the log, and nobody was told"
            sent = b.network.sent
            async with b.outbox(disk.crash()) as again:
                assert again.statistics().in_doubt == 20
                await again.flush()
                assert again.statistics().forwarded == 20
            assert b.network.sent == sent
            assert await b.data(0) == [b"first", *numbers(20)]

    run(main)


def test_killed_before_anything_of_it_arrived_the_next_start_sends_it() -> None:
    async def main() -> None:
        async with bench() as b:
            disk = SimulatedDisk()
            outbox = b.outbox(disk)
            await outbox.start()
            b.network.hold_frames = True
            await outbox.submit(numbered(20))
            await until(lambda: outbox.statistics().in_doubt == 20)
            await outbox.abort()
            b.network.hold_frames = False
            b.network.wire.clear()
            assert await b.data(0) == []
            async with b.outbox(disk.crash()) as again:
                await again.flush()
            assert await b.data(0) == numbers(20)

    run(main)


def test_an_original_that_arrives_after_the_restart_is_fenced_by_the_higher_epoch() -> None:
    """The process is dead, its connection is not, and its frame is still on the wire when the next one settles and sends again."""

    async def main() -> None:
        async with bench() as b:
            disk = SimulatedDisk()
            outbox = b.outbox(disk)
            await outbox.start()
            b.network.hold_frames = b.network.outlive = True
            await outbox.submit(numbered(20))
            await until(lambda: len(b.network.wire) > 0 and outbox.statistics().in_doubt == 20)
            await outbox.abort()
            b.network.hold_frames = b.network.outlive = False
            async with b.outbox(disk.crash()) as again:
                await again.flush()
                assert await b.data(0) == numbers(20)
                await b.network.deliver()
                await asyncio.sleep(1)
                await (await again.submit(Intent.data(0, b"last")))[0].outcome()
            assert await b.data(0) == [*numbers(20), b"last"]

    run(main)


def test_an_original_that_arrives_before_the_restart_settles_is_found() -> None:
    async def main() -> None:
        async with bench() as b:
            disk = SimulatedDisk()
            outbox = b.outbox(disk)
            await outbox.start()
            b.network.hold_frames = b.network.outlive = True
            await outbox.submit(numbered(20))
            await until(lambda: len(b.network.wire) > 0 and outbox.statistics().in_doubt == 20)
            await outbox.abort()
            b.network.hold_frames = b.network.outlive = False
            again = b.outbox(disk.crash())
            await again.start()
            assert await b.network.deliver() > 0
            await again.flush()
            await again.close()
            assert await b.data(0) == numbers(20)

    run(main)


@pytest.mark.parametrize("seed", range(8))
def test_restarts_at_any_moment_lose_and_repeat_nothing(seed: int) -> None:
    """The machine dies at a moment drawn from the seed, again and again; what was not synced is lost, kept or torn by chance."""

    async def main() -> None:
        rng = random.Random(seed)
        async with bench() as b:
            disk, submitted = SimulatedDisk(), 0
            accepted: list[bytes] = []
            for _ in range(8):
                outbox = b.outbox(disk, seed)
                await outbox.start()

                async def submit(outbox: Outbox = outbox) -> None:
                    nonlocal submitted
                    while True:
                        batch = [Intent.data(rng.randrange(2), b"%d" % (submitted + n)) for n in range(rng.randrange(1, 30))]
                        submitted += len(batch)
                        await outbox.submit(batch)
                        accepted.extend(intent.payload for intent in batch)
                        await asyncio.sleep(rng.uniform(0, 0.02))

                task = asyncio.ensure_future(submit())
                for _ in range(rng.randrange(400)):
                    await asyncio.sleep(0)
                await asyncio.sleep(rng.choice([0, rng.uniform(0, 0.3)]))
                await outbox.abort()
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                disk = disk.crash(rng, keep=rng.random() < 0.3)
            async with b.outbox(disk, seed) as last:
                await last.flush()
            found = [*await b.data(0), *await b.data(1)]
            assert len(set(found)) == len(found), "in the log twice"
            assert set(accepted) <= set(found), "accepted and lost"
            assert accepted

    run(main)


def test_an_intent_in_doubt_below_a_trimmed_log_becomes_a_dead_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Part of it is still to be found in the log, the rest is unknown."""

    async def main() -> None:
        async with bench() as b:
            disk = SimulatedDisk()
            outbox = b.outbox(disk)
            await outbox.start()
            b.network.hold_answers = True
            receipts = await outbox.submit(numbered(4))
            await until(lambda: outbox.statistics().in_doubt == 4)
            await asyncio.sleep(1)
            await outbox.abort()
            b.network.hold_answers = False

            async def settled(*_: object) -> Settled:
                return Settled({1: 0, 2: 1}, final=False)

            monkeypatch.setattr(lane, "settle", settled)
            async with b.outbox(disk.crash()) as again:
                await again.flush()
                assert [dead.intent_id for dead in again.dead_letters()] == [receipt.intent_id for receipt in receipts[2:]]
                assert "may be in the log or not" in again.dead_letters()[0].reason
                assert again.statistics().forwarded == 2

    run(main)


@pytest.mark.parametrize(("first", "final"), [(0, False), (6, False), (7, True)])
def test_an_answer_that_can_never_be_final_counts_only_where_the_log_was_trimmed(first: int, final: bool) -> None:
    class Owners:
        parameters = ClusterParameters("test", UUID(int=1), 1)

        def __init__(self) -> None:
            self.asked = 0

        async def owner(self, partition: int, timeout_s: float) -> str:
            return "server"

        def ticket_of(self, client_id: int) -> str:
            return ""

        def call_channel(self, address: str) -> Owners:
            return self

        async def call(self, method: AnyMethod, request: object, timeout_s: float) -> object:
            if method is RESOLVE:
                self.asked += 1
                return pb.ResolveResponse(committed=struct.pack(">3q", 4, 2, 9), final=self.asked == 3, high_water_mark=20)
            return pb.BoundResponse(bounds=[pb.Bound(partition=0, first_transaction_id=first, high_water_mark=20)])

    class Ready:
        partition = 0

        async def mounted(self) -> None:
            return

    async def main() -> None:
        owners = Owners()
        attempts = [Attempt(1, 1, 0, 3, 5, (1, 2, 3), 3)]
        found = await settle(Ready(), owners, attempts, 1, 1.0)  # type: ignore[arg-type]
        assert found == Settled({4: 9, 5: 10}, final=not final)
        assert owners.asked == (1 if final else 3)

    run(main)


def test_a_defect_in_forwarding_is_reported_and_does_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with bench() as b:
            failing = [3]
            honest = lane.Lane._offer

            def offer(self: lane.Lane) -> None:
                if failing[0]:
                    failing[0] -= 1
                    raise KeyError("defect")
                honest(self)

            monkeypatch.setattr(lane.Lane, "_offer", offer)
            async with b.outbox(SimulatedDisk()) as outbox:
                await outbox.submit(numbered(3))
                await until(lambda: "defect" in outbox.statistics().error)
                await outbox.flush()
            assert await b.data(0) == numbers(3)

    run(main)


def test_a_waiter_for_an_outcome_gets_an_error_when_the_outbox_closes() -> None:
    async def main() -> None:
        async with bench() as b:
            b.reachable = False
            async with b.outbox(SimulatedDisk()) as outbox:
                (receipt,) = await outbox.submit(Intent.data(0, b"x"))
                waiting = asyncio.ensure_future(receipt.outcome())
                await asyncio.sleep(1)
            with pytest.raises(InvalidRequest, match="stays on disk"):
                await waiting
            with pytest.raises(InvalidRequest, match="stays on disk"):
                await receipt.outcome()

    run(main)


def test_an_intent_that_the_principal_may_not_append_is_kept_and_delays_no_other() -> None:
    async def main() -> None:
        async with bench() as b:
            await b.cluster.create_topic("shop/orders", 1, properties={"allow-append": "shop"})
            disk = SimulatedDisk()
            async with b.outbox(disk, client_settings=FAST.model_copy(update={"principal": "stranger", "topics": ("shop/orders",)})) as outbox:
                await outbox.submit(numbered(3))
                await (await outbox.submit(Intent.data(1, b"of no topic")))[0].outcome()
                await asyncio.sleep(20)
                assert outbox.statistics().depth == 3
                assert await b.data(0) == []
            async with b.outbox(disk, client_settings=FAST.model_copy(update={"principal": "shop", "topics": ("shop/orders",)})) as again:
                await again.flush()
                assert await b.data(0) == numbers(3)

    run(main)
