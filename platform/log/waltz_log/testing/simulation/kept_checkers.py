"""The invariants of topics that are trimmed and compacted: functions from the evidence of a run to what is wrong with it, as in `checkers`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final

from waltz_log.core.envelope import split_keyed
from waltz_log.core.retention import Retained
from waltz_log.core.subscribers import SUBSCRIBERS, Subscriber
from waltz_log.testing.simulation.history import Evidence
from waltz_log.testing.simulation.kept import KeptEvidence, ViewSeen

__all__ = ["KEPT_CHECKERS", "kept_logs_are_whole", "trimming_waits_for_subscribers", "views_are_the_fold"]


def kept_logs_are_whole(evidence: Evidence) -> Iterator[str]:
    """24: a subscriber reads every transaction once, whatever is trimmed behind it; what was acknowledged is among them, what was not told to be in
    the log is not; replicas hold the same from the first retained transaction on."""
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
        late = {name: first for name, first in kept.firsts.items() if first > kept.first}
        if late:
            yield f"replicas hold less than is retained: partition={kept.partition} first={kept.first} replicas={late}"


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
        lasting = kept.topic.policies.tombstone_retention_ms > 0 and evidence.clocks_kept
        for seen in kept.views:
            if seen.holders < kept.majority:
                told = f"a view up to {seen.bound}, which {seen.holders} replicas had"
                yield f"{seen.storage} had at {seen.at_s:.3f} {told}: partition={kept.partition}"
            if seen.bound not in folds:
                folds[seen.bound] = _fold(kept, seen.bound)
            wrong = list(_compare(seen, folds[seen.bound], lasting=lasting))
            if wrong:
                yield f"{seen.storage}'s view up to {seen.bound} at {seen.at_s:.3f}: {wrong[0]}: partition={kept.partition}"


def _fold(kept: KeptEvidence, bound: int) -> Mapping[bytes, tuple[int, bytes]]:
    """The plainest there is."""
    latest: dict[bytes, tuple[int, bytes]] = {}
    for transaction_id in range(bound):
        keyed = split_keyed(kept.log[transaction_id][1]) if transaction_id in kept.log else None
        if keyed is not None:
            latest[keyed.key] = (transaction_id, keyed.value)
    return latest


def _compare(seen: ViewSeen, wanted: Mapping[bytes, tuple[int, bytes]], *, lasting: bool) -> Iterator[str]:
    found = {record.key: (record.transaction_id, record.value) for record in seen.records}
    if len(found) < len(seen.records):
        yield "a key twice"
    if [record.transaction_id for record in seen.records] != sorted(record.transaction_id for record in seen.records):
        yield "not in the order of ids"
    for key, held in found.items():
        if wanted.get(key) != held:
            yield f"{key!r} is {held!r:.60}, the log has {wanted.get(key)!r:.60}"
    for key, (transaction_id, value) in wanted.items():
        if key not in found and (value or lasting):
            yield f"{key!r} of {transaction_id} is missing" + ("" if value else ", which ended there")


KEPT_CHECKERS: Final = (kept_logs_are_whole, trimming_waits_for_subscribers, views_are_the_fold)
