"""Checks after a smoke run. Each is a function from the history to what is wrong with it. They do not know how the run was made.

The numbers are those of the invariants in `docs/internals/simulator.md`. A test shows that each one notices a falsified history
(`test_smoke_checks.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import TypeAlias

import numpy as np

from verification.smoke.history import IN_LOG, NOT_IN_LOG, Reported, SmokeHistory

__all__ = ["CHECKS", "judge"]

Check: TypeAlias = Callable[[SmokeHistory], Iterable[str]]

TOLD_MAX = 5
"""Findings of one check that are reported; the first ones are enough."""


def ids_are_dense(history: SmokeHistory) -> Iterator[str]:
    """1: ids are dense from 0."""
    for partition, log in history.logs.items():
        for place, transaction_id in enumerate(log.transaction_id):
            if place != transaction_id:
                yield f"id {transaction_id} in place {place}: partition={partition}"
                break


def nothing_is_lost(history: SmokeHistory) -> Iterator[str]:
    """2: what a client learned to be committed is in the log, under the id in its receipt."""
    for client in history.clients:
        for number, reported in enumerate(client.reported):
            if reported in IN_LOG:
                partition, at = client.partition[number], client.transaction_id[number]
                log = history.logs[partition]
                if not 0 <= at < len(log.number) or (log.client[at], log.number[at]) != (client.client, number):
                    held = (log.client[at], log.number[at]) if 0 <= at < len(log.number) else None
                    yield f"attempt {number} of client {client.client} was committed as {at}, where the log holds {held}: partition={partition}"


def nothing_is_there_that_was_denied(history: SmokeHistory) -> Iterator[str]:
    """3: what is in the log was sent there, and its client did not learn that it never would be."""
    for partition, log in history.logs.items():
        for at, (who, number) in enumerate(zip(log.client, log.number, strict=True)):
            client = history.clients[who] if who < len(history.clients) else None
            if client is None or number >= len(client.reported) or client.partition[number] != partition:
                yield f"{at} was never sent: client={who} attempt={number} partition={partition}"
            elif client.reported[number] in NOT_IN_LOG:
                yield f"{at} was told to be {Reported(client.reported[number]).name}: client={who} attempt={number} partition={partition}"


def nothing_is_doubled(history: SmokeHistory) -> Iterator[str]:
    """3, 4: an attempt is in the log at most once, over all partitions, and so is a request."""
    attempts = np.concatenate(
        [np.array(log.client, np.uint64) << np.uint64(32) | np.array(log.number, np.uint64) for log in history.logs.values()]
        or [np.zeros(0, np.uint64)]
    )
    for attempt in _repeated(attempts):
        yield f"attempt {attempt & 0xFFFF_FFFF} of client {attempt >> 32} is in the log more than once"
    for partition, log in history.logs.items():
        for request in _repeated(np.array(log.request, np.uint64)):
            yield f"request {request & 0xFFFF_FFFF} of client id {request >> 32} is in the log more than once: partition={partition}"


def _repeated(values: np.ndarray[tuple[int], np.dtype[np.uint64]]) -> list[int]:
    found, counts = np.unique(values, return_counts=True)
    return [int(each) for each in found[counts > 1]]


def locks_are_serializable(history: SmokeHistory) -> Iterator[str]:
    """5: each transaction judged again, in the order of the log, with an exact table: none checked a lock that was written above its mark."""
    for partition, log in history.logs.items():
        writers: dict[int, int] = {}
        first = 0
        for at, mark in enumerate(log.mark):
            write, read, append = log.lock_counts[3 * at : 3 * at + 3]
            end = first + write + read + append
            for place in range(first, first + write + read):
                lock = log.locks[place]
                if writers.get(lock, -1) > mark:
                    yield f"{at} checked lock {lock} as of {mark}, which {writers[lock]} wrote: partition={partition}"
            for place in (*range(first, first + write), *range(end - append, end)):
                writers[log.locks[place]] = at
            first = end


def rejections_have_a_winner(history: SmokeHistory) -> Iterator[str]:
    """3: the winner that a rejection names is in the log."""
    for client in history.clients:
        for number, reported in enumerate(client.reported):
            if reported == Reported.REJECTED and not 0 <= client.transaction_id[number] < len(history.logs[client.partition[number]].number):
                yield f"attempt {number} of client {client.client} was rejected for {client.transaction_id[number]}, which is not in the log"


def acknowledged_order_is_real_time(history: SmokeHistory) -> Iterator[str]:
    """7: what was acknowledged before another attempt began has the lower id."""
    for partition in history.logs:
        began, ended, ids = [], [], []
        for client in history.clients:
            mine = (np.array(client.reported) == Reported.COMMITTED) & (np.array(client.partition) == partition)
            began.append(np.array(client.began_s)[mine])
            ended.append(np.array(client.ended_s)[mine])
            ids.append(np.array(client.transaction_id)[mine])
        began_s, ended_s, transaction_id = np.concatenate(began), np.concatenate(ended), np.concatenate(ids)
        if not len(transaction_id):
            continue
        by_end = np.argsort(ended_s)
        highest = np.maximum.accumulate(transaction_id[by_end])
        # How many had ended before each began; the highest of those must be below it.
        before = np.searchsorted(ended_s[by_end], began_s, side="left")
        wrong = (before > 0) & (transaction_id < highest[np.maximum(before - 1, 0)])
        for place in np.flatnonzero(wrong):
            yield f"{transaction_id[place]} began after {highest[before[place] - 1]} had been acknowledged: partition={partition}"


def feeds_are_the_log(history: SmokeHistory) -> Iterator[str]:
    """9, 1: each feed reached the end, and byte for byte it was the log."""
    for client in history.clients:
        log = history.logs[client.followed]
        if client.fed != len(log.chain) - 1:
            yield f"the feed of client {client.client} ended at {client.fed}, the log at {len(log.chain) - 1}: partition={client.followed}"
        elif client.fed >= 0 and log.chain[client.fed] != client.chain:
            yield f"client {client.client} was fed something else than the log holds: partition={client.followed}"


def generations_never_fall(history: SmokeHistory) -> Iterator[str]:
    """10: nothing of an older generation lands after a newer one began."""
    for partition, log in history.logs.items():
        generations = np.array(log.generation)
        for place in np.flatnonzero(np.diff(generations) < 0):
            yield f"generation {generations[place + 1]} after {generations[place]} at {place + 1}: partition={partition}"


def replicas_are_identical(history: SmokeHistory) -> Iterator[str]:
    """11: healed and quiet, every replica serves the same bytes."""
    for partition, held in history.replicas.items():
        if len(set(held.values())) != 1:
            yield f"replicas differ: partition={partition} {held}"


def clients_keep_their_word(history: SmokeHistory) -> Iterator[str]:
    """22: every attempt was decided in the end, and no client saw what it should not."""
    for client in history.clients:
        counts = Counter(client.reported)
        for open_ended in (Reported.PENDING, Reported.UNKNOWN):
            if counts[open_ended]:
                yield f"{counts[open_ended]} attempts of client {client.client} are {open_ended.name}"
        yield from (f"client {client.client}: {each}" for each in client.complaints)


CHECKS: Mapping[str, Check] = {
    check.__name__: check
    for check in (
        ids_are_dense,
        nothing_is_lost,
        nothing_is_there_that_was_denied,
        nothing_is_doubled,
        locks_are_serializable,
        rejections_have_a_winner,
        acknowledged_order_is_real_time,
        feeds_are_the_log,
        generations_never_fall,
        replicas_are_identical,
        clients_keep_their_word,
    )
}


def judge(history: SmokeHistory) -> list[str]:
    """What is wrong, each with the name of the check that says so."""
    return [f"{name}: {wrong}" for name, check in CHECKS.items() for wrong in islice(check(history), TOLD_MAX)]
