"""The simulated append path against what can be worked out by hand: no queue, a queue that grows, frames that fill."""

from __future__ import annotations

import pytest

from benchmarks.measurement import percentile
from benchmarks.scaling.costs import large_share
from benchmarks.scaling.queueing import Service, simulate, simulate_single, with_single_latency

SERVICE = Service(
    client_block=0.2,
    client_transaction=0.004,
    server_block=0.3,
    server_transaction=0.002,
    storage_block=0.2,
    storage_transaction=0.001,
    sync=0.1,
    processors=8,
)


def test_one_in_flight_is_the_sum_of_all_steps() -> None:
    found = simulate_single(SERVICE, 50)
    # Half of the client's share of a transaction is charged where it is submitted, which one in flight does not wait for.
    alone = 0.2 + 0.002 + 0.3 + 0.002 + 0.2 + 0.001 + 0.1
    assert found.latencies_ms == pytest.approx([alone] * 50)
    assert found.frames == 50


def test_storage_nodes_that_share_processors_wait_for_each_other() -> None:
    one = Service(**{**vars(SERVICE), "processors": 1})
    alone = percentile(simulate_single(SERVICE, 20).latencies_ms, 0.5)
    assert percentile(simulate_single(one, 20).latencies_ms, 0.5) == pytest.approx(alone + 2 * 0.2, abs=0.06)  # three turns for each slice


def test_every_transaction_is_answered_once_and_a_seed_repeats_its_run() -> None:
    delayed = Service(**{**vars(SERVICE), "delays_ms": [0.0, 0.1, 1.5]})
    first, second, other = (simulate(delayed, rate_per_s=20_000, count=20_000, seed=seed) for seed in (1, 1, 2))
    assert first.transactions == 20_000
    assert len(first.latencies_ms) == 400
    assert first == second
    assert first != other


def test_at_a_low_rate_a_transaction_waits_for_the_tick_and_then_for_its_steps() -> None:
    found = simulate(SERVICE, rate_per_s=500, count=1_000)
    alone = percentile(simulate_single(SERVICE, 20).latencies_ms, 0.5)
    assert min(found.latencies_ms) >= alone * 0.999, "none is sent before it is due"
    assert max(found.latencies_ms) < alone + 2.2, "as the measured load, which sends a transaction at a tick that rings up to 1 ms late"


def test_latency_grows_with_the_rate_and_without_bound_above_what_the_client_carries() -> None:
    halves = [percentile(simulate(SERVICE, rate_per_s=rate, count=rate // 2).latencies_ms, 0.5) for rate in (10_000, 50_000, 150_000)]
    assert halves == sorted(halves)
    over = simulate(SERVICE, rate_per_s=500_000, count=250_000).latencies_ms  # 4 us each: 250,000 a second
    assert over[-1] > 400


def test_frames_hold_what_waits_and_no_more_than_fits() -> None:
    small, large = (simulate(SERVICE, rate_per_s=rate, count=rate) for rate in (5_000, 200_000))
    assert small.transactions / small.frames < 20 < large.transactions / large.frames
    full = Service(**{**vars(SERVICE), "frame_transactions": 100})
    assert simulate(full, rate_per_s=200_000, count=100_000).frames >= 1_000


def test_blocks_that_cost_more_take_longer() -> None:
    twice = Service(**{**vars(SERVICE), "client_block": 0.4, "server_block": 0.6, "storage_block": 0.4})
    assert percentile(simulate_single(twice, 10).latencies_ms, 0.5) == pytest.approx(0.1 + 2 * 0.7 + 0.005)


def test_a_sync_lasts_longer_for_more_bytes() -> None:
    large = Service(**{**vars(SERVICE), "sync_transaction": 0.01})
    assert simulate_single(large, 10).latencies_ms == simulate_single(SERVICE, 10).latencies_ms
    slow, fast = (percentile(simulate(each, rate_per_s=100_000, count=20_000).latencies_ms, 0.5) for each in (large, SERVICE))
    assert slow > fast + 1.0


def test_a_delay_adds_its_time_and_holds_up_what_follows() -> None:
    late = Service(**{**vars(SERVICE), "delays_ms": [5.0]})
    alone = percentile(simulate_single(SERVICE, 10).latencies_ms, 0.5)
    assert simulate_single(late, 10).latencies_ms == pytest.approx([alone + 5.0] * 10)
    slow, fast = (percentile(simulate(each, rate_per_s=100_000, count=20_000).latencies_ms, 0.5) for each in (late, SERVICE))
    assert fast + 5.0 < slow < fast + 30.0


def test_large_blocks_cost_more() -> None:
    heavy = Service(**{**vars(SERVICE), "server_large": 3.0})
    alone = percentile(simulate_single(SERVICE, 10).latencies_ms, 0.5)
    assert simulate_single(heavy, 10).latencies_ms == pytest.approx([alone + 3.0 * large_share(1)] * 10)
    plain, large = (percentile(simulate(each, rate_per_s=100_000, count=20_000).latencies_ms, 0.5) for each in (SERVICE, heavy))
    assert large > plain + 2.0


def test_a_long_sync_is_shared_by_what_arrives_meanwhile() -> None:
    """A node syncs one round at a time, and the server keeps two blocks in flight: each answer waits for two syncs at most."""
    slow = Service(**{**vars(SERVICE), "sync": 20.0, "linger": 0.0})
    found = simulate(slow, rate_per_s=20_000, count=20_000)
    assert found.rounds <= 1_000 / 20 + 3
    assert found.frames > 2 * found.rounds
    assert percentile(found.latencies_ms, 0.5) > 20
    assert max(found.latencies_ms) < 2 * 20 + 25


@pytest.mark.parametrize(("overlap", "frames"), [(10_000, 2), (1_000, 3)])
def test_what_is_enough_for_two_frames_is_sent_in_halves(overlap: int, frames: int) -> None:
    """Of 4,001 transactions, the first is sent and answered. Then all others are due, and are sent as one frame or as two halves."""
    service = Service(**{**vars(SERVICE), "overlap_transactions": overlap})
    assert simulate(service, rate_per_s=1e9, count=4_001).frames == frames


def test_delays_come_with_time() -> None:
    """Ten per cent of a block's turn is late. A block every millisecond meets the delay in every tenth, one every ten milliseconds in most."""
    late = Service(**{**vars(SERVICE), "delays_ms": [0.0] * 9 + [3.0], "delay_every_ms": 1.0})
    rare = Service(**{**vars(late), "delay_every_ms": 0.0})
    often, seldom = (simulate(each, rate_per_s=100, count=5_000).latencies_ms for each in (late, rare))
    assert sum(each > 3 for each in often) > 4 * sum(each > 3 for each in seldom)


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_work_after_a_block_was_passed_on_does_not_delay_it_and_the_share_is_found_from_one_in_flight(share: float) -> None:
    """A block takes 0.7 ms of work. Nothing waits for the share, except that the client's 0.1 ms for the answer delay the next transaction."""
    known = Service(**{**vars(SERVICE), "after": share})
    single_ms = percentile(simulate_single(known, 200).latencies_ms, 0.5)
    assert single_ms == pytest.approx(percentile(simulate_single(SERVICE, 200).latencies_ms, 0.5) - share * 0.6)
    assert with_single_latency(SERVICE, single_ms).after == pytest.approx(share, abs=0.01)


def test_work_after_a_block_is_done_all_the_same() -> None:
    """One processor that has more to do than it can needs as long for it, whenever it does it."""
    small = {**vars(SERVICE), "processors": 1, "frame_transactions": 50, "overlap_transactions": 50}
    at_once, later = (simulate(Service(**{**small, "after": share}), rate_per_s=250_000, count=20_000).latencies_ms[-1] for share in (0.0, 0.5))
    assert later == pytest.approx(at_once, rel=0.02)


def test_everything_but_a_sync_takes_longer_while_the_machine_is_slow() -> None:
    usual = simulate_single(SERVICE, 50).latencies_ms[0]
    slow = simulate_single(Service(**{**vars(SERVICE), "slowness": [(20.0, 3.0), (1e9, 1.0)]}), 50).latencies_ms
    assert slow[0] == pytest.approx(0.1 + 3 * (usual - 0.1))
    assert slow[-1] == pytest.approx(usual)


def test_what_waits_while_the_machine_is_slow_delays_what_comes_after_it() -> None:
    """At 150,000 a second the client is busy for 60 % of the time. Twice as slow for 100 ms, it needs as long again for the rest of them."""
    slow = Service(**{**vars(SERVICE), "slowness": [(100.0, 1.0), (200.0, 2.0)]})
    found = simulate(slow, rate_per_s=150_000, count=75_000).latencies_ms  # one of 50 transactions, so three in a millisecond
    usual = percentile(found[:300], 0.5)
    assert min(found[540:660]) > 2 * usual, "180 to 220 ms"
    assert percentile(found[-300:], 0.5) == pytest.approx(usual, rel=0.3)
