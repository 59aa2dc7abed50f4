"""The blocking face, the inspector, forks and what importing the client brings. The scripted cluster runs in the client's own thread."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from waltz_log.client import Appended, Application, Context, Draft, Lock, Receipt, SyncWaltzClient, Transaction, TransactionContext, sync
from waltz_log.client.base.background import Background
from waltz_log.client.base.settings import ClientSettings
from waltz_log.client.inspection.inspect import ClusterInspector, PartitionBound
from waltz_log.core.metadata import REPLICAS, STORAGE_NODES, ReplicaAssignment, StorageNodeEntry
from waltz_log.errors import ClusterUnavailable, InvalidRequest, InvalidSetting, LockConflict, NotAppended, Unavailable
from waltz_log.testing import SyncInMemoryCluster
from waltz_log.testing.memory_coordinator import MemoryEnsemble
from waltz_log.testing.network import MemoryNetwork
from waltz_log.testing.scripted_server import ScriptedCluster

SETTINGS: dict[str, Any] = {"retry_base_s": 0.001, "retry_cap_s": 0.01, "append_timeout_s": 5, "request_timeout_s": 1, "close_timeout_s": 1}


class Scripted:
    """A scripted cluster in the background thread."""

    def __init__(self) -> None:
        self.background = Background()
        self.ensemble = MemoryEnsemble()
        self.network = MemoryNetwork()
        self.cluster = self.background.call(self._start())

    async def _start(self) -> ScriptedCluster:
        cluster = ScriptedCluster(self.network, self.ensemble.session(), partitions=2)
        await cluster.start()
        return cluster

    def client(self, **settings: Any) -> SyncWaltzClient:
        return SyncWaltzClient.connect_over(self.cluster.seeds, lambda: self.network, ClientSettings(**(SETTINGS | settings)))

    def close(self) -> None:
        self.background.call(self.cluster.stop())
        self.background.close()


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    made = Scripted()
    yield made
    made.close()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_the_blocking_client_appends_reads_and_settles(scripted: Scripted) -> None:
    with scripted.client() as client:
        assert client.partitions == 2
        assert client.append(0, b"one", write_locks=[Lock("x", 1)]).transaction_id == 0
        with pytest.raises(LockConflict):
            client.append(0, b"late", write_locks=[Lock("x", 1)], high_water_mark=-1)
        outcomes = client.append_many(0, [Draft(b"%d" % n) for n in range(10)])
        assert [outcome.transaction_id for outcome in outcomes if isinstance(outcome, Receipt)] == list(range(1, 11))
        futures = [client.append_nowait(0, b"%d" % n) for n in range(500)]
        client.flush()
        assert [future.result(timeout=5).transaction_id for future in futures] == list(range(11, 511))
        assert client.high_water_mark(0) == 510
        feed = client.feed(0, after=508)
        assert [next(feed).transaction_id for _ in range(2)] == [509, 510]
        feed.close()


def test_refusals_of_a_handed_over_append_are_in_its_future(scripted: Scripted) -> None:
    with scripted.client() as client:
        with pytest.raises(InvalidRequest):
            client.append_nowait(9, b"").result(timeout=5)
        assert client.append_nowait(1, b"").result(timeout=5).transaction_id == 0


def test_whatever_is_wrong_with_a_handed_over_append_those_behind_it_go_on(scripted: Scripted) -> None:
    with scripted.client() as client:
        futures = [client.append_nowait([], b""), client.append_nowait(0, b"", header="3")]  # type: ignore[arg-type]
        assert client.append_nowait(0, b"").result(timeout=5).transaction_id == 0
        for future, error in zip(futures, (TypeError, InvalidRequest), strict=True):
            with pytest.raises(error):
                future.result(timeout=5)


def test_a_flush_waits_for_what_was_handed_over_before_and_not_for_what_others_go_on_handing_over(scripted: Scripted) -> None:
    with scripted.client(max_pending=1) as client:
        going_on = True

        def again(_: Future[Receipt]) -> None:
            if going_on:
                client.append_nowait(0, b"").add_done_callback(again)

        for _ in range(20):
            again(Future())
        before = client.append_nowait(0, b"before")
        flushing = threading.Thread(target=client.flush)
        flushing.start()
        flushing.join(10)
        assert (flushing.is_alive(), before.done()) == (False, True)
        going_on = False


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C raises `KeyboardInterrupt`, whatever other tests of this process do at Ctrl-C: a pipeline replaces the handler for good."""
    replaced = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, replaced)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("topic", [False, True])
def test_a_feed_that_is_interrupted_says_so_and_nothing_else_and_is_closed(topic: bool) -> None:
    with SyncInMemoryCluster(storages=1, servers=1) as cluster:
        cluster.create_topic("a/b")
        client = cluster.client(ClientSettings(topics=("a/b",)))
        client.append(0, b"")
        feed: Iterator[Any] = client.topic("a/b").feed() if topic else client.feed(0)
        next(feed)
        interrupting = threading.Timer(0.05, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
        interrupting.start()
        with pytest.raises(KeyboardInterrupt):
            next(feed)
        interrupting.join()
        assert list(feed) == []
        assert client.append(0, b"").transaction_id == 1


def test_a_caller_in_another_thread_learns_that_the_client_was_closed(scripted: Scripted) -> None:
    client = scripted.client()
    reported: list[BaseException] = []

    def read() -> None:
        try:
            next(client.feed(0))
        except BaseException as error:
            reported.append(error)

    reading = threading.Thread(target=read)
    reading.start()
    until(lambda: bool(scripted.cluster.logs[0].mounted))
    client.close()
    reading.join(10)
    assert [type(error) for error in reported] == [InvalidRequest]
    assert "closed" in str(reported[0])


def test_blocking_transactions_need_no_lock_around_their_state(scripted: Scripted) -> None:
    with scripted.client() as client:
        state = {"last": 0}

        def apply(batch: list[Transaction]) -> None:
            for each in batch:
                assert int(each.data) == state["last"] + 1
                state["last"] = int(each.data)

        follower = client.follow(0, apply)

        @client.transactional(follower, attempts=1000)
        def count(tx: TransactionContext) -> None:
            tx.append(b"%d" % (state["last"] + 1), write_locks=[Lock("counter", 1)])

        threads = [threading.Thread(target=lambda: [count() for _ in range(10)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=20)
        follower.wait(39, timeout_s=5)
        assert state["last"] == 40
        with pytest.raises(TimeoutError):
            follower.wait(40, timeout_s=0.01)
        follower.close()


def test_a_blocking_follower_is_asked_where_to_go_on_after_its_application_failed(scripted: Scripted) -> None:
    with scripted.client() as client:
        seen: list[int] = []

        def apply(batch: list[Transaction]) -> None:
            for each in batch:
                if each.data == b"bad" and each.transaction_id not in asked:
                    raise ValueError(f"cannot apply {each.transaction_id}")
                seen.append(each.transaction_id)

        asked: list[int] = []

        def again(error: Exception) -> int | None:
            asked.append(int(str(error).split()[-1]))
            return asked[-1] - 1 if asked[-1] < 3 else None

        follower = client.follow(0, apply, again=again)
        for data in (b"a", b"bad", b"b", b"bad"):
            client.append(0, data)
            if data == b"b":
                follower.wait(2, timeout_s=5)
        with pytest.raises(ValueError, match="cannot apply 3"):
            follower.wait(3, timeout_s=5)
        assert (seen, asked) == ([0, 1, 2], [1, 3])
        assert client.settings.append_timeout_s > 0


def test_blocking_transactions_that_declare_their_locks_run_once_each(scripted: Scripted) -> None:
    with scripted.client() as client:
        count = runs = 0

        def apply(batch: list[Transaction]) -> None:
            nonlocal count
            count = int(batch[-1].data)

        follower = client.follow(0, apply)

        @client.transactional(follower, locks=lambda: [Lock("counter", 1)])
        def increment(tx: TransactionContext) -> None:
            nonlocal runs
            runs += 1
            tx.append(b"%d" % (count + 1), write_locks=[Lock("counter", 1)])

        threads = [threading.Thread(target=lambda: [increment() for _ in range(5)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=20)
        assert (count, runs) == (20, 20)


def test_a_blocking_client_feeds_an_application_and_accepts_contexts(scripted: Scripted) -> None:
    seen: dict[int, list[bytes]] = {0: [], 1: []}
    reported: list[object] = []

    class Seats(Application):
        def client_high_water_mark(self, partition: int) -> int:
            return len(seen[partition]) - 1

        def apply(self, partition: int, transactions: list[Transaction]) -> None:
            seen[partition].extend(each.data for each in transactions)

    class Withdraw(Context):
        def __init__(self, seat: bytes) -> None:
            self.seat = seat

        def partition(self, count: int) -> int:
            return 1

        def execute(self, tx: TransactionContext) -> None:
            if self.seat not in seen[1]:
                tx.append(self.seat, write_locks=[Lock("seat", self.seat.decode())])

        def on_application(self) -> None:
            reported.append(threading.current_thread().name)

    with scripted.client() as client:
        with pytest.raises(InvalidRequest, match="no application"):
            client.submit(Withdraw(b"1A"))
        client.mount(Seats())
        futures = [client.submit(Withdraw(seat)) for seat in (b"1A", b"1B", b"1A")]
        outcomes = [future.result(timeout=10) for future in futures]
        assert [None if each is None else each.transaction_id for each in outcomes] == [0, 1, None]
        client.applied(1).wait(1, timeout_s=5)
        assert seen == {0: [], 1: [b"1A", b"1B"]}
        assert reported == ["waltz client"] * 2
        client.flush()
        client.unmount()
        with pytest.raises(InvalidRequest, match="not mounted"):
            client.submit(Withdraw(b"1C"))


def test_a_blocking_bulk_append_reads_its_source_in_the_callers_thread(scripted: Scripted) -> None:
    threads: set[str] = set()

    def source() -> Iterator[bytes]:
        for number in range(3000):
            threads.add(threading.current_thread().name)
            yield b"%d" % number

    with scripted.client() as client:
        reported: list[Appended] = []
        receipt = client.append_bulk(0, source(), on_ack=reported.append)
        assert receipt.appended == [Appended(0, 3000, 0)]
        assert sum(each.length for each in reported) == 3000
        assert threads == {threading.current_thread().name}
        assert client.unacknowledged() == []

        def failing() -> Iterator[bytes]:
            yield b"last"
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            client.append_bulk(0, failing())
        assert client.append(0, b"").transaction_id == 3001


def test_a_blocking_call_from_the_clients_own_thread_is_refused(scripted: Scripted) -> None:
    with scripted.client() as client:
        follower = client.follow(0, lambda batch: client.append(0, b"again") and None)
        client.append(0, b"first")
        with pytest.raises(InvalidRequest, match="own thread"):
            follower.wait(0, timeout_s=5)


def test_a_callback_of_a_future_appends_without_waiting_for_its_own_thread(scripted: Scripted) -> None:
    """It runs in the client's thread, which makes the room that it would wait for."""
    with scripted.client(append_timeout_s=60) as client:
        outcomes: list[Future[Receipt]] = []
        refused: list[NotAppended] = []
        over = threading.Event()

        def append_more(_: object) -> None:
            for _ in range(sync.INBOX_MAX + 100):
                try:
                    outcomes.append(client.append_nowait(0, b"more"))
                except NotAppended as error:
                    refused.append(error)
            over.set()

        added = threading.Event()
        scripted.background.loop.call_soon_threadsafe(added.wait, 20)  # a callback of a future that is done already would run in this thread
        client.append_nowait(0, b"first").add_done_callback(append_more)
        added.set()
        assert over.wait(20), "the client's thread waits for itself"
        assert len({each.result(60).transaction_id for each in outcomes}) == sync.INBOX_MAX
        assert {error.reason for error in refused} == {f"the queue is full and a callback cannot wait: {sync.INBOX_MAX} appends are handed over"}
        assert client.append(0, b"the client goes on").transaction_id == sync.INBOX_MAX + 1


def test_a_closed_blocking_client_says_so_and_leaves_no_thread(scripted: Scripted) -> None:
    client = scripted.client()
    client.close()
    client.close()
    with pytest.raises(InvalidRequest, match="closed"):
        client.append(0, b"")
    with pytest.raises(InvalidRequest, match="closed"):
        client.append_nowait(0, b"")
    scripted.background.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "waltz client"]
    scripted.background = Background()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_a_client_of_a_forked_parent_is_refused_with_a_clear_word(scripted: Scripted) -> None:
    with scripted.client() as client:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(10)  # a client that does not notice waits for a thread that is not there
            reported = []
            for call in (lambda: client.append(0, b""), lambda: client.append_nowait(0, b""), lambda: client.high_water_mark(0)):
                try:
                    call()
                except InvalidRequest as error:
                    reported.append("forked" in str(error))
            client.close()
            os.write(writing, repr(reported).encode())
            os._exit(0)
        os.close(writing)
        os.waitpid(child, 0)
        assert os.read(reading, 100) == b"[True, True, True]"
        os.close(reading)
        assert client.append(0, b"the parent goes on").transaction_id == 0


# ---- the inspector -------------------------------------------------------------------------------------------------------------------------------


def test_the_inspector_returns_bounds_and_replicas(scripted: Scripted) -> None:
    async def register() -> None:
        session = scripted.ensemble.session()
        await session.create(REPLICAS, ReplicaAssignment({0: ("s0", "s1"), 1: ("s1", "s2")}).to_bytes())
        for name in ("s0", "s1"):
            await session.create(f"{STORAGE_NODES}/{name}", StorageNodeEntry(f"{name}:1", 1).to_bytes())

    scripted.background.call(register())
    with scripted.client() as client:
        client.append(1, b"")
        scripted.background.call(scripted.cluster.move(1, 2))
        with ClusterInspector.connect_over(scripted.cluster.seeds, scripted.network) as cluster:
            assert cluster.parameters.partitions == 2
            assert cluster.bounds() == {0: PartitionBound(0, 1, 1, -1, 0), 1: PartitionBound(1, 2, 1, 0, 0)}
            assert list(cluster.bounds([1])) == [1]
            assert cluster.bounds([]) == {}
            assert cluster.replicas() == {0: ["s0:1", "s1:1"], 1: ["s1:1"]}
            owners = cluster.owners()
            assert list(owners) == [0, 1]
            assert None not in owners.values()
            with pytest.raises(InvalidRequest, match="no such partition"):
                cluster.bounds([7])


def test_the_inspector_waits_for_an_owner_and_names_what_has_none(scripted: Scripted) -> None:
    scripted.background.call(scripted.cluster.move(1, None))
    with ClusterInspector.connect_over(scripted.cluster.seeds, scripted.network, timeout_s=0.2) as cluster:
        with pytest.raises(Unavailable, match=r"partitions=\[1\]"):
            cluster.bounds()
        scripted.background.loop.call_soon_threadsafe(
            lambda: scripted.background.loop.call_later(0.05, lambda: scripted.background.loop.create_task(scripted.cluster.move(1, 2)))
        )
        assert cluster.bounds()[1].generation == 3


# ---- what is not there, and what importing brings --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("open_", [lambda a: SyncWaltzClient(a, ClientSettings(connect_timeout_s=0.5)), lambda a: ClusterInspector(a, 0.5)])
def test_a_missing_cluster_is_reported_in_time_and_by_address(open_: object) -> None:
    assert callable(open_)
    with pytest.raises(ClusterUnavailable, match=r"127\.0\.0\.1:9"):
        open_("127.0.0.1:9")
    with pytest.raises(InvalidSetting, match="cluster"):
        open_("nonsense")


def test_an_unknown_setting_is_refused_naming_the_nearest() -> None:
    with pytest.raises(InvalidSetting, match="did you mean linger_ms"):
        ClientSettings.load(None, prefix="WALTZ_TEST", lingerms=3)


def test_importing_the_client_imports_no_numpy_spark_or_arrow() -> None:
    heavy = ("numpy", "pyspark", "pyarrow", "pandas", "sqlalchemy")
    code = f"import sys, waltz_log.client, waltz_log.client.inspection.inspect; print([name for name in {heavy} if name in sys.modules])"
    reported = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert reported.stdout.strip() == "[]"
