"""The platform and Kafka get the same load, with every setting given; rounds that warm up count nothing; the best peer counts."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from benchmarks import bulk
from benchmarks.load import DATA, Load
from benchmarks.peers import kafka_cases, kafka_clients
from benchmarks.peers.kafka_cases import BULK_WINDOW, GROUPS, LINGERS_MS, OFFERED_PER_S, SIZES, TRIALS, UNSYNCED, Sides, Work, cases
from benchmarks.peers.kafka_clients import ConfluentLoads, Produced, ProducerSettings
from benchmarks.peers.rounds import WARM_ROUNDS, Case, Rounds, compared
from waltz_log.client import WaltzClient

WORK = Work(throughput=500, singles=20, offered_s=0.01)
FOUND = Load(5, 1.0, [1.0, 2.0, 3.0])


class Recorder:
    """Stands for the three clients, and writes down what each was asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ours: list[tuple[Any, ...]] = []
        self.theirs: list[tuple[Any, ...]] = []
        self.java_settings: list[Mapping[str, Any]] = []
        self.topics: list[tuple[str, ProducerSettings]] = []

        async def pipelined(_: Any, count: int, *, window: int, partitions: Any = (0,), data: bytes = DATA, locked: bool = True) -> Load:
            self.ours.append(("pipelined", count, window, len(partitions), len(data)))
            return FOUND

        async def offered(_: Any, count: int, *, rate: float) -> Load:
            self.ours.append(("offered", count, rate))
            return FOUND

        async def single(_: Any, count: int) -> Load:
            self.ours.append(("single", count))
            return FOUND

        for name, load in (("pipelined", pipelined), ("offered", offered), ("single", single)):
            monkeypatch.setattr(kafka_cases, name, load)

    def in_bulk(self, batches: list[Any]) -> float:
        self.ours.append(("bulk", sum(map(len, batches))))
        return 5.0

    def on_platform(self, load: Callable[[Any], Any]) -> Load:
        running = load(None)
        try:
            running.send(None)
        except StopIteration as ended:
            found: Load = ended.value
            return found
        raise AssertionError("the load waited")

    def confluent(self, topic: str, settings: ProducerSettings) -> Any:
        recorder = self

        class Loads:
            def pipelined(self, count: int, *, window: int, partitions: int = 1, data: bytes = DATA) -> Load:
                recorder.theirs.append(("pipelined", count, window, partitions, len(data)))
                return FOUND

            def batched(self, count: int, *, window: int, partitions: int = 1, data: bytes = DATA) -> Load:
                recorder.theirs.append(("batched", count, window, partitions, len(data)))
                recorder.topics.append((topic, settings))
                return Load(count, settings.linger_ms / 10 + 1, [])

            def offered(self, count: int, *, rate: float) -> Load:
                recorder.theirs.append(("offered", count, rate))
                return FOUND

            def single(self, count: int) -> Load:
                recorder.theirs.append(("single", count))
                return FOUND

        return Loads()

    def produce(self, topic: str, count: int, *, record_bytes: int, per_s: int, settings: Mapping[str, Any], window: int = 0) -> Produced:
        self.theirs.append(("pipelined", count, window, 1, record_bytes) if per_s < 0 else ("offered", count, per_s))
        self.java_settings.append(settings)
        return Produced(count, 5.0, 1.0, 2, 4)


@pytest.mark.parametrize("group", GROUPS)
def test_both_sides_get_the_same_load(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(monkeypatch)
    sides = Sides("", recorder.confluent, recorder)  # type: ignore[arg-type]
    for name in ("on_platform", "in_bulk", "confluent"):
        monkeypatch.setattr(sides, name, getattr(recorder, name))
    for case in cases(group, sides, WORK):
        recorder.ours.clear()
        assert len(case.platform()) == len(case.figures)
        assert len(recorder.ours) == (2 if group == "offered" else 1)  # an open loop warms up at its rate
        for peer in case.peers.values():
            recorder.theirs.clear()
            assert len(peer()) == len(case.figures)
            for (way, *load), (their_way, *theirs) in zip(recorder.ours, recorder.theirs, strict=True):
                if way == "bulk":
                    assert theirs[:2] == [load[0], BULK_WINDOW], "as many bytes in flight as append_bulk has"
                else:
                    assert (their_way.replace("batched", "pipelined"), theirs) == (way, load)
        assert "2 of 3" in case.conditions["platform_durability"]
        assert "every in-sync replica" in case.conditions["kafka_durability"]
        assert all(name.removesuffix(" produce") + " produce_batch" in case.peers for name in case.peers if name.endswith(" produce"))
    for settings in recorder.java_settings:
        assert settings["acks"] == "all"
        assert "linger.ms" in settings, "not left to a default that differs between versions"


def test_brokers_are_suspended_exactly_while_the_platform_runs_and_each_side_begins_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    @contextmanager
    def suspended() -> Iterator[None]:
        said.append("suspended")
        yield
        said.append("resumed")

    @asynccontextmanager
    async def opened(_: str) -> AsyncIterator[str]:
        yield "platform"

    async def single(client: str, count: int) -> Load:
        said.append(f"{client}: {count} one by one")
        return FOUND

    async def load(_: Any) -> Load:
        said.append("platform: load")
        return FOUND

    async def rate(_cluster: str, _batches: list[Any]) -> float:
        said.append("platform: bulk")
        return 5.0

    class Loads:
        def single(self, count: int) -> Load:
            said.append(f"kafka: {count} one by one")
            return FOUND

    monkeypatch.setattr(WaltzClient, "open", opened)
    monkeypatch.setattr(kafka_cases, "single", single)
    monkeypatch.setattr(bulk, "rate", rate)
    sides = Sides("", lambda *_: Loads(), None, suspended)  # type: ignore[arg-type]
    sides.on_platform(load)
    sides.in_bulk([])
    sides.confluent("topic", ProducerSettings(5, None))
    assert said == [
        *("suspended", "platform: 50 one by one", "platform: load", "resumed"),
        *("suspended", "platform: bulk", "resumed"),
        "kafka: 50 one by one",
    ]


def test_latencies_are_measured_at_each_linger_and_rate() -> None:
    sides: Any = None
    found = cases("offered", sides, WORK)
    assert [case.conditions["offered_per_s"] for case in found] == list(OFFERED_PER_S) == [20_000, 50_000, 100_000]
    for case in found:
        assert {f"confluent-kafka linger {linger}" for linger in LINGERS_MS} <= set(case.peers)
        assert case.lower
    assert LINGERS_MS == (0, 1, 5)


def test_kafka_in_bulk_is_tuned_compressed_and_as_most_run_it_each_with_its_durability(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(monkeypatch)
    sides = Sides("", recorder.confluent, recorder)  # type: ignore[arg-type]
    monkeypatch.setattr(sides, "confluent", recorder.confluent)
    found = {case.figures[0]: case for case in cases("throughput", sides, WORK)}
    assert {settings for _, settings in recorder.topics} == set(TRIALS)
    for name, compression, durability in (
        ("kafka.bulk", "none", "each syncs"),
        ("kafka.bulk_lz4", "lz4", "each syncs"),
        ("kafka.bulk_unsynced", "none", "synced later"),
    ):
        conditions = found[name].conditions
        assert (conditions["kafka"]["compression.type"], conditions["kafka"]["linger.ms"]) == (compression, 1), "the fastest trial"
        assert durability in conditions["kafka_durability"]
        assert (conditions["in_flight"], conditions["bytes_in_flight"]) == (BULK_WINDOW, BULK_WINDOW * len(DATA))
        recorder.topics.clear()
        found[name].peers["confluent-kafka produce_batch"]()
        assert {topic for topic, _ in recorder.topics} == {UNSYNCED if name == "kafka.bulk_unsynced" else "bench-1"}


def test_large_records_are_not_in_flight_by_the_gigabyte(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(monkeypatch)
    sides = Sides("", recorder.confluent, recorder)  # type: ignore[arg-type]
    monkeypatch.setattr(sides, "confluent", recorder.confluent)
    for case, (_, size, _) in zip(cases("sizes", sides, WORK), SIZES, strict=True):
        assert case.conditions["in_flight"] * size <= 32 * 1024 * 1024


# ---- rounds ----------------------------------------------------------------------------------------------------------------------------------------


def values(*made: float) -> Callable[[], list[float]]:
    left = deque(made)
    return lambda: [left.popleft()]


def test_warm_rounds_are_not_counted_and_the_best_peer_is() -> None:
    platform = values(1, 1, 1, 300, 400, 500)
    peers = {"slow": values(900, 900, 900, 100, 100, 100), "fast": values(900, 900, 900, 200, 200, 1000)}
    (found,) = compared([Case(["a"], "txn/s", platform, peers, {"own": 1})], 3, {"cores": 2})
    assert WARM_ROUNDS == 3
    assert (found.name, found.value, found.ratio, found.ratio_to) == ("a", 400, 1.5, "fast, 200 txn/s")
    assert found.conditions["ratios"] == "0.50 to 2.00"
    assert found.conditions["peers"]["slow"] == "100 (100 to 100), ratio 4.00"
    assert (found.conditions["own"], found.conditions["cores"], found.conditions["rounds"]) == (1, 2, 3)


def test_of_latencies_the_lowest_is_the_best() -> None:
    peers = {"one": values(1, 1, 1, 8, 8), "other": values(1, 1, 1, 4, 4)}
    (found,) = compared([Case(["a"], "ms", values(1, 1, 1, 2, 2), peers, {}, lower=True)], 2, {})
    assert (found.ratio, found.ratio_to) == (0.5, "other, 4 ms")


@pytest.mark.parametrize("lower", [True, False])
def test_a_peer_that_cannot_hold_the_load_runs_no_more_and_is_named(lower: bool) -> None:
    hopeless = values(1, 1, 1000) if lower else values(100, 100, 1)
    peers = {"hopeless": hopeless, "good": values(*[10 if lower else 100] * 4)}
    rounds = Rounds(Case(["a"], "ms", values(1, 1, 1, 5), peers, {}, lower=lower))
    for number in range(4):
        rounds.run(number)
    (found,) = rounds.measurements({})
    assert found.conditions["could_not_hold"] == {"hopeless": "1,000" if lower else "1"}
    assert list(found.conditions["peers"]) == ["good"]


def test_sides_change_their_order() -> None:
    ran: list[str] = []

    def side(name: str) -> Callable[[], list[float]]:
        def run() -> list[float]:
            ran.append(name)
            return [1.0]

        return run

    rounds = Rounds(Case(["a"], "ms", side("platform"), {"peer": side("peer")}, {}))
    for number in range(3):
        rounds.run(number)
    assert ran == ["peer", "platform", "platform", "peer", "peer", "platform"]


# ---- confluent-kafka's loads -----------------------------------------------------------------------------------------------------------------------


class Producer:
    """Answers everything at each poll, `delay_s` after it was sent; the `fails`-th record is not delivered."""

    def __init__(self, delay_s: float = 0.0, fails: int = -1) -> None:
        self.delay_s = delay_s
        self.fails = fails
        self.sent: list[tuple[str, int, int]] = []
        self.waiting: deque[Callable[[Any, Any], None]] = deque()
        self.in_flight_max = 0
        self.stopped = self.purged = self.full = False
        self.batches: list[int] = []

    def produce(self, topic: str, value: bytes, *, partition: int, on_delivery: Callable[[Any, Any], None]) -> None:
        self.sent.append((topic, partition, len(value)))
        self.waiting.append(on_delivery)
        self.in_flight_max = max(self.in_flight_max, len(self.waiting))

    def produce_batch(self, topic: str, messages: list[dict[str, Any]], *, partition: int, on_delivery: Callable[[Any, Any], None]) -> int:
        if self.full:
            return len(messages) - 1
        for message in messages:
            self.produce(topic, message["value"], partition=partition, on_delivery=on_delivery)
        self.batches.append(len(messages))
        return len(messages)

    def poll(self, timeout: float) -> int:
        time.sleep(self.delay_s)
        if self.stopped:
            return 0
        first = len(self.sent) - len(self.waiting)
        answered = len(self.waiting)
        for number in range(first, first + answered):
            self.waiting.popleft()("no leader" if number == self.fails else None, None)
        return answered

    def flush(self, timeout: float) -> int:
        self.poll(0)
        return 0

    def purge(self) -> None:
        self.purged = True
        self.stopped = False


def test_the_window_bounds_what_is_in_flight() -> None:
    producer = Producer()
    load = ConfluentLoads(producer, "t").pipelined(1_000, window=100, partitions=4, data=b"12345")
    assert (load.count, producer.in_flight_max) == (1_000, 100)
    assert [producer.sent.count(("t", partition, 5)) for partition in range(4)] == [250] * 4
    assert len(load.latencies_ms) == 20


def test_batches_keep_to_the_window_and_go_to_partitions_in_turns() -> None:
    producer = Producer()
    load = ConfluentLoads(producer, "t").batched(20_500, window=8_000, partitions=2, data=b"12345")
    assert (load.count, producer.in_flight_max) == (20_500, 8_000)
    assert producer.batches == [1_000] * 20 + [500]
    assert [producer.sent.count(("t", partition, 5)) for partition in range(2)] == [10_500, 10_000]


def test_a_batch_that_is_not_queued_whole_spoils_the_figure() -> None:
    producer = Producer()
    producer.full = True
    with pytest.raises(RuntimeError, match="queued 4 of 5 records"):
        ConfluentLoads(producer, "t").batched(5, window=40)


def test_a_batch_of_large_records_is_a_part_of_the_window() -> None:
    producer = Producer()
    load = ConfluentLoads(producer, "t").batched(100, window=40, data=b"12345")
    assert (load.count, producer.in_flight_max) == (100, 40)
    assert producer.batches == [5] * 20


def test_one_at_a_time_means_one_in_flight_and_a_second_load_counts_from_zero() -> None:
    producer = Producer()
    loads = ConfluentLoads(producer, "t")
    for _ in range(2):
        assert len(loads.single(20).latencies_ms) == 20
    assert producer.in_flight_max == 1


def test_a_stall_of_kafka_is_charged_to_all_that_was_due_meanwhile() -> None:
    load = ConfluentLoads(Producer(delay_s=0.05), "t").offered(1_000, rate=5_000)
    assert max(load.latencies_ms) > 80, "one that was due at the beginning of a poll of 50 ms waits for two of them"
    assert load.took_s >= 0.2


def test_a_record_that_is_not_delivered_spoils_the_figure() -> None:
    with pytest.raises(RuntimeError, match="no leader"):
        ConfluentLoads(Producer(fails=7), "t").pipelined(20, window=5)


def test_settings_that_cannot_hold_a_rate_end_the_loop_and_are_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_clients, "BEHIND_S", 0.1)
    producer = Producer(delay_s=0.001)
    producer.stopped = True
    load = ConfluentLoads(producer, "t").offered(100_000, rate=5_000)
    assert producer.purged
    assert load.count < 5_000
    assert max(load.latencies_ms) > 90
