"""A log in memory, the plainest fold of it, and views of it to compare with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random

from waltz_log.compaction import CompactedView, CompactionSettings, Compactor, LogRecord
from waltz_log.core.formats.envelope import pack_keyed, split_keyed
from waltz_log.core.formats.wal_records import WalRecord
from waltz_log.core.ports import Disk
from waltz_log.core.topics.topic_names import TopicName

TOPIC = TopicName("market", "prices")
SMALL = CompactionSettings(key_cache_bytes=1 << 12, segment_bytes=1 << 14)
BEGUN_MS = 1_600_000_000_000
Log = Sequence[LogRecord]


def drawn_log(random: Random, count: int, keys: int, first: int = 0) -> list[LogRecord]:
    """Values, ends of keys, and now and then something without a key. The time of a transaction is its id in seconds."""
    log = []
    for transaction_id in range(first, first + count):
        key = b"key-%d" % random.randrange(keys)
        drawn = random.random()
        value = b"" if drawn < 0.15 else random.randbytes(random.randrange(1, 60))
        data = b"\xffnot keyed" if drawn > 0.97 else pack_keyed(key, value)
        log.append(LogRecord(transaction_id, BEGUN_MS + 1000 * transaction_id, random.randrange(4), data))
    return log


def reader(log: Log, batch: int = 7) -> Callable[[int, int], Iterable[Sequence[LogRecord]]]:
    def read(first: int, end: int) -> Iterable[Sequence[LogRecord]]:
        chosen = [record for record in log if first <= record.transaction_id < end]
        for at in range(0, len(chosen), batch):
            yield chosen[at : at + batch]

    return read


def fold(log: Log, bound: int) -> list[WalRecord]:
    """The latest of each key, ends of keys among them, by transaction id."""
    latest: dict[bytes, WalRecord] = {}
    for transaction_id, time_ms, header, data in log:
        keyed = split_keyed(data)
        if keyed is not None and transaction_id < bound:
            latest[keyed.key] = WalRecord(transaction_id, time_ms, header, *keyed)
    return sorted(latest.values())


def open_view(disk: Disk, start: int = 0, *, topic: TopicName = TOPIC, owner: str = "desk") -> CompactedView:
    return CompactedView.open(disk, topic, 3, start=start, now_ms=BEGUN_MS, properties={"owner": owner})


def compactor(view: CompactedView, settings: CompactionSettings = SMALL) -> Compactor:
    return Compactor(view, settings)


def contents(view: CompactedView) -> list[WalRecord]:
    with view.snapshot() as snapshot:
        return list(snapshot.records())
