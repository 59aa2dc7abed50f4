"""The judges of the smoke test: a history in order passes, and each check notices the history that is spoiled for it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from verification.smoke.checks import CHECKS, judge
from verification.smoke.history import ClientHistory, PartitionLog, Reported, SmokeHistory
from verification.smoke.payload import Sent, decode, encode
from waltz_log.client import Transaction

PARTITIONS, CLIENTS, ATTEMPTS, LOCKS = 2, 3, 300, 20


def history_in_order(seed: int = 0) -> SmokeHistory:
    """Clients that alternate at a log that is nothing but a list: the dumbest correct one."""
    rng = Random(seed)
    clients = [ClientHistory(number, followed=number % PARTITIONS) for number in range(CLIENTS)]
    logs = {partition: PartitionLog() for partition in range(PARTITIONS)}
    writers: dict[tuple[int, int], int] = {}
    for turn in range(ATTEMPTS):
        client, partition = rng.choice(clients), rng.randrange(PARTITIONS)
        log = logs[partition]
        last = len(log.number) - 1
        mark = max(-1, last - rng.choice((0, 0, 1, 5)))
        write, read, append = [rng.randrange(LOCKS)], [rng.randrange(LOCKS)], [rng.randrange(LOCKS)]
        number = client.begin(partition, float(turn))
        winner = max(writers.get((partition, lock), -1) for lock in (*write, *read))
        if winner > mark:
            client.end(number, Reported.REJECTED, winner, turn + 0.5)
            continue
        if rng.random() < 0.05:
            client.end(number, rng.choice((Reported.NOT_APPENDED, Reported.ABSENT)), -1, turn + 0.5)
            continue
        data = encode(client.client, number, mark, write, read, append, 64)
        log.add(Transaction(last + 1, 0, 0, data, client.client + 100, 1 + turn // 100, number + 1))
        for lock in (*write, *append):
            writers[partition, lock] = last + 1
        client.end(number, rng.choice((Reported.COMMITTED, Reported.COMMITTED, Reported.RESOLVED)), last + 1, turn + 0.5)
    for client in clients:
        client.fed = len(logs[client.followed].number) - 1
        client.chain = logs[client.followed].chain[-1]
    return SmokeHistory(clients, logs, {partition: dict.fromkeys(("storage-0", "storage-1"), "same") for partition in logs})


def _some(history: SmokeHistory, reported: Reported) -> tuple[ClientHistory, int]:
    return next((client, number) for client in history.clients for number, each in enumerate(client.reported) if each == reported)


def _without_the_last(log: PartitionLog) -> None:
    for column in (log.transaction_id, log.client, log.number, log.mark, log.request, log.generation, log.chain):
        column.pop()
    del log.lock_counts[-3:], log.locks[-3:]


def _lose_one(history: SmokeHistory) -> None:
    _without_the_last(history.logs[0])


def _double_one(history: SmokeHistory) -> None:
    log = history.logs[0]
    log.client[7], log.number[7] = log.client[5], log.number[5]


def _double_over_partitions(history: SmokeHistory) -> None:
    here, there = history.logs[0], history.logs[1]
    there.client[7], there.number[7] = here.client[5], here.number[5]


def _repeat_a_request(history: SmokeHistory) -> None:
    history.logs[1].request[3] = history.logs[1].request[9]


def _lower_a_mark(history: SmokeHistory) -> None:
    log = history.logs[0]
    log.mark[len(log.mark) - 1] = -1


def _skip_an_id(history: SmokeHistory) -> None:
    history.logs[0].transaction_id[4] = 99


def _deny_one(history: SmokeHistory) -> None:
    client, number = _some(history, Reported.COMMITTED)
    client.reported[number] = Reported.ABSENT


def _invent_one(history: SmokeHistory) -> None:
    history.logs[0].number[3] = 10_000


def _swap_two(history: SmokeHistory) -> None:
    log = history.logs[0]
    for at, other in ((2, len(log.number) - 1),):
        for place, to in ((at, other), (other, at)):
            client = history.clients[log.client[place]]
            client.transaction_id[log.number[place]] = to
            client.reported[log.number[place]] = Reported.COMMITTED


def _name_no_winner(history: SmokeHistory) -> None:
    client, number = _some(history, Reported.REJECTED)
    client.transaction_id[number] = 10_000


def _feed_other_bytes(history: SmokeHistory) -> None:
    history.clients[0].chain ^= 1


def _end_a_feed(history: SmokeHistory) -> None:
    history.clients[0].fed -= 1


def _fall_back(history: SmokeHistory) -> None:
    history.logs[1].generation[-1] = 1


def _differ(history: SmokeHistory) -> None:
    history.replicas[1]["storage-1"] = "other"


def _leave_open(history: SmokeHistory) -> None:
    history.clients[0].reported[3] = Reported.UNKNOWN


def _complain(history: SmokeHistory) -> None:
    history.clients[0].complaints.append("9: was fed 3 where 2 was next")


SPOILED: list[tuple[str, Callable[[SmokeHistory], None]]] = [
    ("ids_are_dense", _skip_an_id),
    ("nothing_is_lost", _lose_one),
    ("nothing_is_lost", _double_one),
    ("nothing_is_there_that_was_denied", _deny_one),
    ("nothing_is_there_that_was_denied", _invent_one),
    ("nothing_is_doubled", _double_one),
    ("nothing_is_doubled", _double_over_partitions),
    ("nothing_is_doubled", _repeat_a_request),
    ("locks_are_serializable", _lower_a_mark),
    ("rejections_have_a_winner", _name_no_winner),
    ("acknowledged_order_is_real_time", _swap_two),
    ("feeds_are_the_log", _feed_other_bytes),
    ("feeds_are_the_log", _end_a_feed),
    ("generations_never_fall", _fall_back),
    ("replicas_are_identical", _differ),
    ("clients_keep_their_word", _leave_open),
    ("clients_keep_their_word", _complain),
]


@pytest.mark.parametrize("seed", range(5))
def test_a_history_in_order_passes(seed: int) -> None:
    assert judge(history_in_order(seed)) == []


@pytest.mark.parametrize(("check", "spoil"), SPOILED, ids=lambda each: each if isinstance(each, str) else each.__name__)
def test_a_spoiled_history_is_noticed(check: str, spoil: Callable[[SmokeHistory], None]) -> None:
    history = history_in_order()
    spoil(history)
    assert list(CHECKS[check](history))


def test_every_check_has_a_history_that_it_notices() -> None:
    assert {check for check, _ in SPOILED} == set(CHECKS)


@pytest.mark.parametrize("seed", range(3))
def test_each_violated_lock_is_found_at_any_position(seed: int) -> None:
    """Marks lowered one at a time, judged by a loop over all pairs of transactions."""
    whole = history_in_order(seed)
    log = whole.logs[0]
    for at in range(1, len(log.mark), 7):
        spoiled = copy.deepcopy(whole)
        spoiled.logs[0].mark[at] = -1
        write, read, _ = (log.locks[3 * at + kind] for kind in range(3))
        violated = any({log.locks[3 * before], log.locks[3 * before + 2]} & {write, read} for before in range(at))
        assert bool(list(CHECKS["locks_are_serializable"](spoiled))) == violated


def test_a_payload_reads_back_as_it_was_written() -> None:
    rng = Random(1)
    for _ in range(200):
        write, read, append = ([rng.randrange(1 << 32) for _ in range(rng.randrange(3))] for _ in range(3))
        client, number, mark = rng.randrange(1 << 16), rng.randrange(1 << 32), rng.randrange(-1, 1 << 60)
        sent = Sent(client, number, mark, len(write), len(read), len(append), (*write, *read, *append))
        data = encode(client, number, mark, write, read, append, 200)
        assert len(data) == 200
        assert decode(data) == sent


def test_a_client_history_travels_as_a_file(tmp_path: Path) -> None:
    client = history_in_order().clients[1]
    client.complaints.append("22: something with a line\nbreak")
    client.save(tmp_path / "client.npz")
    assert ClientHistory.load(tmp_path / "client.npz") == client
