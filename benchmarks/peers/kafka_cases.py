"""What is compared with Kafka, in groups that `ONLY` names, and with which settings.

In each figure both sides get the same load: the same number of transactions, of the same size, over the same number of partitions. They run either as
fast as possible with the same number in flight, or one transaction is due at fixed intervals even if earlier ones are unanswered (an open loop). What
still differs is in each figure's conditions:

- Durability. The platform answers when two of three replicas have the transaction on disk (fdatasync). Kafka with `acks=all` answers when every
  replica in sync has it, all three while none lags; `flush.messages=1` makes each of them sync, and `min.insync.replicas=2` only says when to refuse.
- Kafka checks no locks. The platform's transactions hold one write lock each unless the figure says otherwise.
- Kafka's brokers are suspended while the platform is measured, because idle brokers use 6 to 12 % of a processor (twice a second at the same time),
  which raised the platform's 99th percentile at 100,000 per second from 11 to 19 ms. The platform's idle processes use 0.5 % and are not suspended.
- The platform's client runs on uvloop, and confluent-kafka has threads in C for its connections.
- Java's tool counts a latency from the call that sends; the others count from when the record was due.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import uvloop

from benchmarks import bulk
from benchmarks.load import DATA, WARM_OFFERED_S, WARM_SINGLES, Load, offered, pipelined, single
from benchmarks.measurement import percentile
from benchmarks.peers.kafka_clients import BEHIND_S, ConfluentLoads, JavaTool, ProducerSettings
from benchmarks.peers.rounds import Case, Run
from benchmarks.setting import DATA_BYTES
from waltz_log.client import WaltzClient

__all__ = ["DIFFERENCES", "GROUPS", "LINGERS_MS", "OFFERED_PER_S", "PARTITIONS", "Sides", "Work", "cases"]

DIFFERENCES = {
    "platform_durability": "fdatasync at 2 of 3 replicas",
    "kafka_durability": "acks=all: every in-sync replica, 3 of 3 while none lags; flush.messages=1: each syncs; min.insync.replicas=2",
    "platform_loop": "uvloop",
    "brokers": "suspended while the platform is measured",
}
GROUPS = ("throughput", "single", "offered", "sizes")
PARTITIONS = {"throughput": 1, "single": 1, "offered": 1, "sizes": 16}

WINDOW = 16_000
WINDOW_BYTES = 32 * 1024 * 1024
"""The maximum number in flight if records are large, on both sides."""

TUNED = ProducerSettings(linger_ms=10, batch_bytes=512 * 1024)
DEFAULT = ProducerSettings(linger_ms=5, batch_bytes=None)
"""The defaults since Kafka 4.0 and librdkafka 2.12. They are set explicitly, so that they do not depend on the version."""

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


def _throughput(sides: Sides, work: Work) -> list[Case]:
    count = work.throughput

    def peers(settings: ProducerSettings, what: str) -> dict[str, Run]:
        def confluent() -> Sequence[float]:
            return [sides.confluent(topic(1), settings).pipelined(count, window=WINDOW).rate]

        def java() -> Sequence[float]:
            return [sides.java.produce(topic(1), count, record_bytes=DATA_BYTES, per_s=-1, settings=settings.document()).rate]

        return {f"confluent-kafka {what}": confluent, f"ProducerPerformance {what}": java}

    def nowait() -> Sequence[float]:
        return [sides.on_platform(lambda client: pipelined(client, count, window=WINDOW)).rate]

    @cache
    def batches(locked: bool) -> list[Any]:
        return bulk.batches(count, arrow=True, locked=locked)

    def in_bulk(locked: bool) -> Sequence[float]:
        return [sides.in_bulk(batches(locked))]

    tuned, default = peers(TUNED, "tuned"), peers(DEFAULT, "default")
    own = {"count": count, **DIFFERENCES}
    locked, free = {"locks": "1 write each", **own}, {"locks": "none", **own}
    many = {"in_flight": WINDOW, "kafka": TUNED.document()}
    return [
        Case(["kafka.append"], "txn/s", nowait, tuned, {**locked, **many}),
        Case(["kafka.append_default"], "txn/s", nowait, default, {**locked, "in_flight": WINDOW, "kafka": DEFAULT.document()}),
        Case(["kafka.bulk"], "txn/s", partial(in_bulk, False), tuned, {**free, **many, "batch_rows": bulk.BATCH_ROWS}),
        Case(["kafka.bulk_locks"], "txn/s", partial(in_bulk, True), tuned, {**locked, **many, "batch_rows": bulk.BATCH_ROWS}),
    ]


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

    def platform() -> Sequence[float]:
        spread = range(partitions)
        load = sides.on_platform(lambda client: pipelined(client, count, window=window, partitions=spread, data=data, locked=False))
        return [load.rate]

    def confluent() -> Sequence[float]:
        return [sides.confluent(topic(partitions), TUNED).pipelined(count, window=window, partitions=partitions, data=data).rate]

    own = {"partitions": partitions, "bytes": size, "count": count, "in_flight": window, "locks": "none", "kafka": TUNED.document(), **DIFFERENCES}
    return Case([f"kafka.append_{partitions}p_{size}b"], "txn/s", platform, {"confluent-kafka tuned": confluent}, own)
