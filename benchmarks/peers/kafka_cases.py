"""What is compared with Kafka, in groups that `ONLY` names, and with which settings.

In each figure both sides get the same load: the same number of transactions, of the same size, over the same number of partitions. They run either as
fast as possible with the same number in flight, or one transaction is due at fixed intervals even if earlier ones are unanswered (an open loop). What
still differs is in each figure's conditions:

- Durability. The platform answers when two of three replicas have the transaction on disk (fdatasync). Kafka with `acks=all` answers when every
  replica in sync has it, all three while none lags; `flush.messages=1` makes each of them sync, and `min.insync.replicas=2` only says when to refuse.
  One figure has a topic without `flush.messages`, as most clusters run it: Kafka then answers before any replica has synced.
- In bulk, both sides use their interface for many records: `append_bulk`, and `produce_batch` with as many bytes in flight. Kafka's batch size and
  linger are those of the best of several trials with the payload and the number of partitions. Records are alike, so lz4 compresses them better
  than real data.
- Kafka checks no locks. The platform's transactions hold one write lock each unless the figure says otherwise.
- Kafka's brokers are suspended while the platform is measured, because idle brokers use 6 to 12 % of a processor (twice a second at the same time),
  which raised the platform's 99th percentile at 100,000 per second from 11 to 19 ms. The platform's idle processes use 0.5 % and are not suspended.
- The platform's client runs on uvloop, and confluent-kafka has threads in C for its connections.
- Java's tool counts a latency from the call that sends; the others count from when the record was due.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import uvloop

from benchmarks import bulk
from benchmarks.load import DATA, WARM_OFFERED_S, WARM_SINGLES, Load, offered, pipelined, single
from benchmarks.measurement import percentile
from benchmarks.peers.kafka_clients import BEHIND_S, ConfluentLoads, JavaTool, ProducerSettings
from benchmarks.peers.rounds import Case, Run
from benchmarks.setting import DATA_BYTES
from waltz_log.client import ClientSettings, WaltzClient

__all__ = ["DIFFERENCES", "GROUPS", "LINGERS_MS", "OFFERED_PER_S", "PARTITIONS", "UNSYNCED", "WINDOW", "Sides", "Work", "cases", "topic"]

DIFFERENCES = {
    "platform_durability": "fdatasync at 2 of 3 replicas",
    "kafka_durability": "acks=all: every in-sync replica, 3 of 3 while none lags; flush.messages=1: each syncs; min.insync.replicas=2",
    "platform_loop": "uvloop",
    "brokers": "suspended while the platform is measured",
}
UNSYNCED_DURABILITY = "acks=all: in the memory of every in-sync replica; no flush.messages: synced later; min.insync.replicas=2"
UNSYNCED = "bench-unsynced"
"""The topic of Kafka as most run it."""
GROUPS = ("throughput", "single", "offered", "sizes")
PARTITIONS = {"throughput": 1, "single": 1, "offered": 1, "sizes": 16}

WINDOW = 16_000
BULK_WINDOW = ClientSettings.model_fields["max_pending"].default
"""What `append_bulk` has in flight by default, and so `produce_batch` too."""
WINDOW_BYTES = 32 * 1024 * 1024
"""The maximum number in flight if records are large, on both sides."""

TUNED = ProducerSettings(linger_ms=10, batch_bytes=512 * 1024)
DEFAULT = ProducerSettings(linger_ms=5, batch_bytes=None)
"""The defaults since Kafka 4.0 and librdkafka 2.12. They are set explicitly, so that they do not depend on the version."""

TRIALS = tuple(ProducerSettings(linger_ms, batch_bytes) for linger_ms in (1, 10, 50) for batch_bytes in (128 * 1024, 512 * 1024, 1_000_000))
TRIAL_SHARE = 10
"""A trial has a tenth of the records of a run."""

LINGERS_MS = (0, 1, 5)
JAVA_LINGER_MS = 5
OFFERED_PER_S = (20_000, 50_000, 100_000)
SIZES = ((1, 64, 400_000), (1, 1024, 100_000), (1, 10 * 1024, 12_000), (1, 100 * 1024, 1_500), (4, DATA_BYTES, 200_000), (16, DATA_BYTES, 60_000))
"""Partitions, bytes, records of each run."""


@dataclass(frozen=True)
class Work:
    throughput: int
    singles: int
    offered_s: float
    sizes_share: float = 1.0


@dataclass
class Sides:
    """The three clients, connected to running clusters. `suspended`: Kafka's brokers do nothing meanwhile."""

    platform: str
    connect: Callable[[str, ProducerSettings], ConfluentLoads]
    java: JavaTool
    suspended: Callable[[], AbstractContextManager[object]] = nullcontext

    def on_platform(self, load: Callable[[WaltzClient], Awaitable[Load]]) -> Load:
        async def run() -> Load:
            async with WaltzClient.open(self.platform) as client:
                await single(client, WARM_SINGLES)
                return await load(client)

        with self.suspended():
            return uvloop.run(run())

    def in_bulk(self, batches: list[Any]) -> float:
        with self.suspended():
            return uvloop.run(bulk.rate(self.platform, batches))

    def confluent(self, topic: str, settings: ProducerSettings) -> ConfluentLoads:
        loads = self.connect(topic, settings)
        loads.single(WARM_SINGLES)
        return loads


def topic(partitions: int) -> str:
    return f"bench-{partitions}"


def cases(group: str, sides: Sides, work: Work) -> list[Case]:
    made: Mapping[str, Callable[[Sides, Work], list[Case]]] = {"throughput": _throughput, "single": _single, "offered": _offered, "sizes": _sizes}
    return made[group](sides, work)


@dataclass(frozen=True)
class Trial:
    """A load as fast as Kafka's client can send it, and the settings that were best for it."""

    sides: Sides
    topic: str
    window: int
    partitions: int = 1
    data: bytes = DATA

    def tuned(self, count: int) -> ProducerSettings:
        """The settings with the highest rate of `produce_batch`; each trial comes after one that is not measured."""

        def rate(settings: ProducerSettings) -> float:
            for _ in range(2):
                found = self.batched(max(1, count // TRIAL_SHARE), settings)
            return found[0]

        return max(TRIALS, key=rate)

    def batched(self, count: int, settings: ProducerSettings) -> Sequence[float]:
        loads = self.sides.confluent(self.topic, settings)
        return [loads.batched(count, window=self.window, partitions=self.partitions, data=self.data).rate]

    def produced(self, count: int, settings: ProducerSettings) -> Sequence[float]:
        loads = self.sides.confluent(self.topic, settings)
        return [loads.pipelined(count, window=self.window, partitions=self.partitions, data=self.data).rate]

    def java(self, count: int, settings: ProducerSettings) -> Sequence[float]:
        size = len(self.data)
        return [self.sides.java.produce(self.topic, count, record_bytes=size, per_s=-1, settings=settings.document(), window=self.window).rate]


def _throughput(sides: Sides, work: Work) -> list[Case]:
    count = work.throughput

    def nowait() -> Sequence[float]:
        return [sides.on_platform(lambda client: pipelined(client, count, window=WINDOW)).rate]

    def one_by_one(figure: str, settings: ProducerSettings, what: str) -> Case:
        trial = Trial(sides, topic(1), WINDOW)
        peers = {
            f"confluent-kafka {what}": partial(trial.produced, count, settings),
            f"ProducerPerformance {what}": partial(trial.java, count, settings),
        }
        own = {"locks": "1 write each", "count": count, **DIFFERENCES, "in_flight": WINDOW, "kafka": settings.document()}
        return Case([figure], "txn/s", nowait, peers, own)

    @cache
    def batches(locked: bool) -> list[Any]:
        return bulk.batches(count, arrow=True, locked=locked)

    def bulk_case(figure: str, *, locked: bool = False, compression: str = "none", synced: bool = True) -> Case:
        trial = Trial(sides, topic(1) if synced else UNSYNCED, BULK_WINDOW)
        settings = replace(trial.tuned(count), compression=compression)
        peers = {
            "confluent-kafka produce_batch": partial(trial.batched, count, settings),
            "confluent-kafka produce": partial(trial.produced, count, settings),
            "ProducerPerformance": partial(trial.java, count, settings),
        }
        own: dict[str, Any] = {
            "locks": "1 write each" if locked else "none",
            "count": count,
            "batch_rows": bulk.BATCH_ROWS,
            **DIFFERENCES,
            **_in_flight(BULK_WINDOW),
        }
        own |= {"kafka": settings.document()} if synced else {"kafka": settings.document(), "kafka_durability": UNSYNCED_DURABILITY}
        return Case([figure], "txn/s", lambda: [sides.in_bulk(batches(locked))], peers, own)

    return [
        one_by_one("kafka.append", TUNED, "tuned"),
        one_by_one("kafka.append_default", DEFAULT, "default"),
        bulk_case("kafka.bulk"),
        bulk_case("kafka.bulk_locks", locked=True),
        bulk_case("kafka.bulk_lz4", compression="lz4"),
        bulk_case("kafka.bulk_unsynced", synced=False),
    ]


def _in_flight(window: int, size: int = DATA_BYTES) -> dict[str, Any]:
    return {"in_flight": window, "bytes_in_flight": window * size}


def _percentiles(load: Load) -> Sequence[float]:
    return [percentile(load.latencies_ms, 0.5), percentile(load.latencies_ms, 0.99)]


def _single(sides: Sides, work: Work) -> list[Case]:
    def platform() -> Sequence[float]:
        return _percentiles(sides.on_platform(lambda client: single(client, work.singles)))

    def confluent(linger_ms: int) -> Sequence[float]:
        return _percentiles(sides.confluent(topic(1), ProducerSettings(linger_ms, None)).single(work.singles))

    peers = {f"confluent-kafka linger {linger_ms}": partial(confluent, linger_ms) for linger_ms in LINGERS_MS}
    own = {"in_flight": 1, "count": work.singles, "locks": "1 write each", **DIFFERENCES}
    return [Case(["kafka.single_p50_ms", "kafka.single_p99_ms"], "ms", platform, peers, own, lower=True)]


def _offered(sides: Sides, work: Work) -> list[Case]:
    return [_offered_at(sides, rate, int(rate * work.offered_s)) for rate in OFFERED_PER_S]


def _offered_at(sides: Sides, rate: int, count: int) -> Case:
    warm = int(rate * WARM_OFFERED_S)

    async def warmed(client: WaltzClient) -> Load:
        await offered(client, warm, rate=rate)
        return await offered(client, count, rate=rate)

    def platform() -> Sequence[float]:
        return _percentiles(sides.on_platform(warmed))

    def confluent(linger_ms: int) -> Sequence[float]:
        loads = sides.confluent(topic(1), ProducerSettings(linger_ms, None))
        loads.offered(warm, rate=rate)
        return _percentiles(loads.offered(count, rate=rate))

    def java() -> Sequence[float]:
        settings = ProducerSettings(JAVA_LINGER_MS, None).document()
        sides.java.produce(topic(1), warm, record_bytes=DATA_BYTES, per_s=rate, settings=settings)
        found = sides.java.produce(topic(1), count, record_bytes=DATA_BYTES, per_s=rate, settings=settings)
        return [max(found.p50_ms, 0.5), max(found.p99_ms, 0.5)]  # it rounds down to whole milliseconds

    peers: dict[str, Run] = {f"confluent-kafka linger {linger_ms}": partial(confluent, linger_ms) for linger_ms in LINGERS_MS}
    peers[f"ProducerPerformance linger {JAVA_LINGER_MS}"] = java
    own = {
        "offered_per_s": rate,
        "count": count,
        "locks": "1 write each",
        "latency": "since due; ProducerPerformance since sent",
        "ended_when_behind_s": BEHIND_S,
        "warm_up_s": WARM_OFFERED_S,
        **DIFFERENCES,
    }
    return Case([f"kafka.p50_ms_at_{rate // 1000}k", f"kafka.p99_ms_at_{rate // 1000}k"], "ms", platform, peers, own, lower=True)


def _sizes(sides: Sides, work: Work) -> list[Case]:
    return [_size(sides, partitions, size, int(count * work.sizes_share)) for partitions, size, count in SIZES]


def _size(sides: Sides, partitions: int, size: int, count: int) -> Case:
    data = (DATA * (size // DATA_BYTES + 1))[:size]
    window = min(WINDOW, WINDOW_BYTES // size)
    trial = Trial(sides, topic(partitions), window, partitions, data)
    settings = trial.tuned(count)

    def platform() -> Sequence[float]:
        spread = range(partitions)
        load = sides.on_platform(lambda client: pipelined(client, count, window=window, partitions=spread, data=data, locked=False))
        return [load.rate]

    peers = {
        "confluent-kafka produce_batch": partial(trial.batched, count, settings),
        "confluent-kafka produce": partial(trial.produced, count, settings),
    }
    own = {"partitions": partitions, "bytes": size, "count": count, **_in_flight(window, size), "locks": "none", "kafka": settings.document()}
    return Case([f"kafka.append_{partitions}p_{size}b"], "txn/s", platform, peers, {**own, **DIFFERENCES})
