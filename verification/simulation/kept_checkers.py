"""The invariants of topics that are trimmed and compacted: functions from the evidence of a run to what is wrong with it, as in `checkers`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final

from verification.simulation.history import Evidence
from verification.simulation.kept_evidence import KeptEvidence, ViewSeen
from verification.simulation.real_time import out_of_real_time
from verification.simulation.stored_records import differences
from waltz_log.core.formats.envelope import split_keyed
from waltz_log.core.retention import Retained
from waltz_log.core.topics.subscribers import SUBSCRIBERS, Subscriber

__all__ = [
    "KEPT_CHECKERS",
    "kept_locks_are_serializable",
    "kept_logs_are_in_order",
    "kept_logs_are_whole",
    "kept_logs_have_no_duplicates",
    "trimming_waits_for_subscribers",
    "views_are_the_fold",
]


def kept_logs_are_whole(evidence: Evidence) -> Iterator[str]:
    """24: a subscriber reads every transaction once, whatever is trimmed behind it; what was acknowledged is among them, what was not reported to be
    in the log is not; replicas hold the same from the first retained transaction on."""
    for kept in evidence.kept:
        yield from (f"{each}: partition={kept.partition}" for each in kept.complaints)
        missing = [place for place in range(kept.mark + 1) if place not in kept.log]
        if missing:
            yield f"the subscriber did not read {missing[:3]} of {kept.mark}: partition={kept.partition}"
            continue
        numbered = {data for _, data in kept.log.values() if b"#" in data}
        for attempt in evidence.history.attempts:
            data = kept.appended.get(attempt.number)
            if data is None or attempt.partition != kept.partition:
                continue
            if attempt.in_log and (attempt.transaction_id is None or kept.log.get(attempt.transaction_id, (0, b""))[1] != data):
                yield f"attempt {attempt.number} was committed as {attempt.transaction_id}, which holds another: partition={kept.partition}"
            if attempt.in_log is False and b"#" in data and data in numbered:
                yield f"attempt {attempt.number} is in the log, told {attempt.outcome} / {attempt.resolved}: partition={kept.partition}"
        for stored in {each for each in kept.stored.values() if isinstance(each, bytes)}:
            retained = [kept.transactions[place] for place in range(kept.first, kept.mark + 1)]
            yield from differences(stored, retained, kept.partition)
        late = {name: first for name, first in kept.firsts.items() if first > kept.first}
        if late:
            yield f"replicas hold less than is retained: partition={kept.partition} first={kept.first} replicas={late}"


def _whole(evidence: Evidence) -> Iterator[KeptEvidence]:
    """Those of which every transaction was read; what is missing, `kept_logs_are_whole` reports."""
    for kept in evidence.kept:
        if len(kept.transactions) == kept.mark + 1 and all(place in kept.transactions for place in range(kept.mark + 1)):
            yield kept


def _attempt_number(data: bytes) -> int | None:
    """Of a transaction that names its attempt; the end of a key has no room for it."""
    keyed = split_keyed(data)
    value = data if keyed is None else keyed.value
    start, _, _ = value.partition(b"|")
    return int(start[1:]) if start.startswith(b"#") else None


def kept_logs_have_no_duplicates(evidence: Evidence) -> Iterator[str]:
    """3, 4: an attempt and a request id are in the whole log at most once, also where it is trimmed by now."""
    for kept in _whole(evidence):
        seen: dict[object, int] = {}
        for at, transaction in sorted(kept.transactions.items()):
            names: list[object] = [("request", transaction.client_id, transaction.sequence)]
            number = _attempt_number(transaction.data)
            if number is not None:
                names.append(("attempt", number))
            for name in names:
                if name in seen:
                    yield f"{name} is in the log at {seen[name]} and {at}: partition={kept.partition}"
                seen[name] = at


def kept_logs_are_in_order(evidence: Evidence) -> Iterator[str]:
    """7, 10: what was acknowledged before another append began has the lower id, and generations never fall."""
    for kept in _whole(evidence):
        reported = [each for each in evidence.history.attempts if each.partition == kept.partition and each.outcome == "committed"]
        yield from (f"{found}: partition={kept.partition}" for found in out_of_real_time(reported))
        newest = 0
        for at, transaction in sorted(kept.transactions.items()):
            if transaction.generation < newest:
                yield f"generation {transaction.generation} after {newest} at {at}: partition={kept.partition}"
            newest = max(newest, transaction.generation)


def kept_locks_are_serializable(evidence: Evidence) -> Iterator[str]:
    """5: no transaction of the whole log checked a lock that was written above its client's mark, also where it is trimmed by now."""
    for kept in _whole(evidence):
        writers: dict[str, int] = {}
        for at, transaction in sorted(kept.transactions.items()):
            number = _attempt_number(transaction.data)
            if number is None:
                continue
            attempt = evidence.history.attempts[number]
            for name in sorted(attempt.checked):
                if attempt.mark is not None and writers.get(name, -1) > attempt.mark:
                    yield f"{at} checked {name} as of {attempt.mark}, which {writers[name]} wrote: partition={kept.partition}"
            writers.update(dict.fromkeys((*attempt.write, *attempt.append), at))


def trimming_waits_for_subscribers(evidence: Evidence) -> Iterator[str]:
    """25: the first retained transaction never falls, and is never above what a registered subscriber is done with."""
    firsts: dict[str, int] = defaultdict(int)
    subscribers: dict[str, Subscriber] = {}
    for written in evidence.history.metadata:
        if written.path.startswith(f"{SUBSCRIBERS}/"):
            subscribers[written.path] = Subscriber.from_bytes(written.data)
        elif written.path.startswith("/store/retained/"):
            found = Retained.from_bytes(written.data)
            if found.first < firsts[written.path]:
                yield f"{written.path} falls from {firsts[written.path]} to {found.first} at {written.at_s:.3f}"
            firsts[written.path] = found.first
            partition = int(written.path.rpartition("/")[2])
            for each in subscribers.values():
                mark = each.marks.get(partition)
                if mark is not None and found.first > mark + 1:
                    yield f"trimmed to {found.first} at {written.at_s:.3f}, {each.name} is done up to {mark}: partition={partition}"


def views_are_the_fold(evidence: Evidence) -> Iterator[str]:
    """26: a compacted view, whenever and wherever it is read, is the fold by key of the log below its bound, which a majority has; the end of a key
    is in it until its time is over."""
    for kept in evidence.kept:
        folds: dict[int, Mapping[bytes, tuple[int, bytes]]] = {}
        durable = kept.topic.policies.tombstone_retention_ms > 0 and evidence.clocks_kept
        for seen in kept.views:
            if seen.holders < kept.majority:
                reported = f"a view up to {seen.bound}, which {seen.holders} replicas had"
                yield f"{seen.storage} had at {seen.at_s:.3f} {reported}: partition={kept.partition}"
            if seen.bound not in folds:
                folds[seen.bound] = _fold(kept, seen.bound)
            wrong = list(_compare(seen, folds[seen.bound], durable=durable))
            if wrong:
                yield f"{seen.storage}'s view up to {seen.bound} at {seen.at_s:.3f}: {wrong[0]}: partition={kept.partition}"


def _fold(kept: KeptEvidence, bound: int) -> Mapping[bytes, tuple[int, bytes]]:
    """The simplest fold."""
    latest: dict[bytes, tuple[int, bytes]] = {}
    for transaction_id in range(bound):
        keyed = split_keyed(kept.log[transaction_id][1]) if transaction_id in kept.log else None
        if keyed is not None:
            latest[keyed.key] = (transaction_id, keyed.value)
    return latest


def _compare(seen: ViewSeen, wanted: Mapping[bytes, tuple[int, bytes]], *, durable: bool) -> Iterator[str]:
    found = {record.key: (record.transaction_id, record.value) for record in seen.records}
    if len(found) < len(seen.records):
        yield "a key twice"
    if [record.transaction_id for record in seen.records] != sorted(record.transaction_id for record in seen.records):
        yield "not in the order of ids"
    for key, held in found.items():
        if wanted.get(key) != held:
            yield f"{key!r} is {held!r:.60}, the log has {wanted.get(key)!r:.60}"
    for key, (transaction_id, value) in wanted.items():
        if key not in found and (value or durable):
            yield f"{key!r} of {transaction_id} is missing" + ("" if value else ", which ended there")


KEPT_CHECKERS: Final = (
    kept_logs_are_whole,
    kept_logs_have_no_duplicates,
    kept_logs_are_in_order,
    kept_locks_are_serializable,
    trimming_waits_for_subscribers,
    views_are_the_fold,
)
