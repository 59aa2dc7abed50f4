"""What the error of a transaction says that was given up: attempts, time, the last winner, and the limit that was reached."""

from __future__ import annotations

import asyncio
import pickle
import random
from collections.abc import Callable

import pytest

from waltz_log.client.base.retry import Backoff, RetryBudget
from waltz_log.client.transactions.admission import Admission
from waltz_log.client.transactions.attempts import Attempts, Execution
from waltz_log.client.transactions.transaction import Draft, Lock, Receipt
from waltz_log.errors import GaveUp, GaveUpOnConflict, LockConflict, NotAppended


class Following:
    """Applies the log at once, unless it is stuck."""

    partition = 4
    error = None

    def __init__(self, *, stuck: bool = False) -> None:
        self.admission = Admission()
        self.applied = 0
        self.stuck = stuck

    async def wait(self, transaction_id: int) -> None:
        if self.stuck:
            await asyncio.Event().wait()
        self.applied = max(self.applied, transaction_id)

    async def settled(self, transaction_id: int) -> None:
        await self.wait(transaction_id)


async def ended(
    failures: Callable[[int], Exception],
    *,
    attempts: int = 1000,
    timeout_s: float = 30.0,
    budget: int = 1000,
    stuck: bool = False,
    closed: Callable[[], bool] = lambda: False,
    pause_s: float = 0.0,
) -> GaveUp | GaveUpOnConflict:
    """How a transaction ends of which the nth append fails with `failures(n)`."""
    sent = 0

    async def append(partition: int, draft: Draft, *, timeout_s: float) -> Receipt:
        nonlocal sent
        sent += 1
        raise failures(sent)

    async def execute(number: int) -> Execution:
        return Execution(following.applied, Draft(b"", write_locks=[Lock("x", 1)]))

    following = Following(stuck=stuck)
    backoff = Backoff(pause_s, pause_s, random.Random(1))
    running = Attempts(append, lambda: backoff, RetryBudget(budget, 0.0), attempts, closed)
    with pytest.raises((GaveUp, GaveUpOnConflict)) as caught:
        await running.run(following, execute, asyncio.get_running_loop().time() + timeout_s)
    error = caught.value
    assert isinstance(error, GaveUp | GaveUpOnConflict)
    assert error.attempts == sent
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.facts, str(again)) == (type(error), error.facts, str(error))
    return error


def conflict(sent: int) -> LockConflict:
    return LockConflict(partition=4, winner=10 * sent)


def refusal(sent: int) -> NotAppended:
    return NotAppended(partition=4, reason="the replicas are full")


async def test_attempts_that_all_met_conflicts_are_reported_with_the_last_winner() -> None:
    error = await ended(conflict, attempts=3)
    assert isinstance(error, GaveUpOnConflict)
    assert isinstance(error, LockConflict)
    assert (error.attempts, error.winner, error.limit) == (3, 30, "attempts")
    assert 0 <= error.elapsed_s < 5
    reported = f"partition=4 winner=30 attempts=3 elapsed_s={error.elapsed_s} limit=attempts"
    assert str(error) == f"{GaveUpOnConflict.text}: {reported}"
    assert isinstance(error.__cause__, LockConflict)


async def test_a_timeout_is_reported_as_a_timeout() -> None:
    error = await ended(conflict, timeout_s=0.1, pause_s=1e9)
    assert isinstance(error, GaveUpOnConflict)
    assert (error.attempts, error.winner, error.limit) == (2, 20, "timeout_s")


async def test_a_winner_that_is_not_applied_in_time_is_reported_with_the_followers_mark() -> None:
    error = await ended(conflict, timeout_s=0.1, stuck=True)
    assert isinstance(error, GaveUpOnConflict)
    assert (error.attempts, error.winner, error.limit) == (1, 10, "timeout_s")
    assert error.elapsed_s >= 0.1
    assert "applied=0" in str(error.__cause__)


async def test_a_spent_budget_is_reported_with_the_reason_of_the_last_attempt() -> None:
    error = await ended(lambda sent: conflict(sent) if sent == 1 else refusal(sent), budget=2)
    assert isinstance(error, GaveUp)
    assert isinstance(error, NotAppended)
    assert (error.attempts, error.winner, error.limit, error.reason) == (4, 10, "retry_budget", "the replicas are full")
    assert str(error).startswith("gave up: not appended: the replicas are full: partition=4 attempts=4 elapsed_s=")


async def test_closing_the_client_in_between_is_reported() -> None:
    answers = iter([False, True])  # before it is sent, and after it failed
    error = await ended(refusal, closed=lambda: next(answers))
    assert isinstance(error, GaveUp)
    assert (error.attempts, error.winner, error.limit) == (1, None, "closed")


async def test_an_append_that_was_never_sent_has_no_attempts() -> None:
    error = await ended(refusal, timeout_s=-1.0)
    assert isinstance(error, GaveUp)
    assert (error.attempts, error.limit, error.reason) == (0, "timeout_s", "deadline passed before it was sent")
