"""Token buckets against the simplest correct one: a list of all accepted work."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz_log.core.quotas import Meter, Rates, TokenBucket

STEPS = st.lists(st.tuples(st.floats(0, 3), st.integers(1, 40)), max_size=60)
RATES = st.floats(0.5, 50)
BURSTS = st.integers(1, 30)


@given(RATES, BURSTS, STEPS)
def test_in_any_time_no_more_is_accepted_than_the_rate_the_burst_and_one_batch(rate: float, burst: int, steps: list[tuple[float, int]]) -> None:
    bucket, now_s, accepted = TokenBucket(rate, burst, 0.0), 0.0, list[tuple[float, int]]()
    for pause_s, amount in steps:
        now_s += pause_s
        if not bucket.wait_s(now_s):
            bucket.charge(amount, now_s)
            accepted.append((now_s, amount))
    for first, (since_s, _) in enumerate(accepted):
        for last in range(first, len(accepted)):
            before = sum(amount for _, amount in accepted[first:last])
            assert before < rate * (accepted[last][0] - since_s) + burst + 1e-6, "a batch was admitted without a token"


@given(RATES, BURSTS, STEPS)
def test_it_holds_what_a_recount_of_the_accepted_work_gives(rate: float, burst: int, steps: list[tuple[float, int]]) -> None:
    bucket, now_s, level, filled_s = TokenBucket(rate, burst, 0.0), 0.0, float(burst), 0.0
    for pause_s, amount in steps:
        now_s += pause_s
        level, filled_s = min(burst, level + rate * (now_s - filled_s)), now_s
        assert bucket.tokens(now_s) == pytest.approx(level)
        if not bucket.wait_s(now_s):
            bucket.charge(amount, now_s)
            level -= amount


@given(RATES, BURSTS, st.integers(1, 500))
def test_after_the_retry_time_there_is_a_token_however_large_the_batch_was(rate: float, burst: int, amount: int) -> None:
    bucket = TokenBucket(rate, burst, 0.0)
    bucket.charge(amount, 0.0)
    wait_s = bucket.wait_s(0.0)
    assert (wait_s > 0) == (amount >= burst)
    assert bucket.wait_s(wait_s) == 0
    if wait_s > 0.01:
        assert bucket.wait_s(wait_s - 0.01) > 0, "the retry time is no longer than it must be"


def test_a_clock_that_stands_still_or_goes_back_brings_no_tokens() -> None:
    bucket = TokenBucket(10, 5, 100.0)
    bucket.charge(5, 100.0)
    assert bucket.tokens(99.0) == bucket.tokens(100.0) == 0
    bucket.charge(1, 99.0)
    assert bucket.tokens(100.0) == -1


def test_asking_and_being_refused_costs_nothing() -> None:
    meter = Meter("ada", "shop/orders", Rates(transactions_per_s=10, bytes_per_s=1000, mounts_per_s=1), 0.0)
    meter.charge_append(10, 5, 0.0)
    meter.charge_mount(0.0)
    for _ in range(1000):
        assert meter.append_refusal(0.0) is not None
        assert meter.mount_refusal(0.0) is not None
    assert meter.append_refusal(0.002) is None
    assert meter.mount_refusal(0.002) is None


def test_the_limit_that_lasts_longer_is_named() -> None:
    meter = Meter("ada", "", Rates(transactions_per_s=10, bytes_per_s=1000), 0.0)
    meter.charge_append(11, 5000, 0.0)
    refusal = meter.append_refusal(0.0)
    assert refusal is not None
    assert (refusal.quota, round(refusal.retry_after_s, 2)) == ("bytes_per_s", 4.0)
    assert meter.append_refusal(4.01) is None


@given(st.none() | RATES, st.none() | RATES, BURSTS, st.lists(st.tuples(st.floats(0, 3), st.integers(0, 40), st.integers(0, 40)), max_size=20))
def test_work_fits_if_the_next_work_would_be_accepted_after_it(
    transactions_per_s: float | None, bytes_per_s: float | None, burst_s: int, steps: list[tuple[float, int, int]]
) -> None:
    def meter() -> Meter:
        return Meter("p", "t", Rates(transactions_per_s, bytes_per_s, None, burst_s), 0.0)

    held, now_s = meter(), 0.0
    done: list[tuple[float, int, int]] = []
    for pause_s, transactions, size in steps:
        now_s += pause_s
        after = meter()
        for each_s, before, before_bytes in done:
            after.charge_append(before, before_bytes, each_s)
        after.charge_append(transactions, size, now_s)
        assert held.fits(transactions, size, now_s) == (after.append_refusal(now_s) is None)
        held.charge_append(transactions, size, now_s)
        done.append((now_s, transactions, size))


def test_a_meter_without_limits_refuses_nothing_and_is_always_full() -> None:
    meter = Meter("ada", "", Rates(), 0.0)
    meter.charge_append(10**9, 10**12, 0.0)
    meter.charge_mount(0.0)
    assert meter.append_refusal(0.0) is None
    assert meter.mount_refusal(0.0) is None
    assert meter.fits(10**9, 10**9, 0.0)
    assert meter.is_full(0.0)
    assert (meter.batch_transactions, meter.batch_bytes) == (0, 0)
