"""The cost model finds the parts that runs were made of, and its plans can be checked by hand."""

from __future__ import annotations

import pytest

from benchmarks.scaling.costs import LARGE_BLOCK_TRANSACTIONS, MEASURED, Cost, Node, Run, fitted, plan

TRUE = Cost(per_transaction=2.0, per_block=700.0, per_kib=5.0)


def run(block_transactions: float, data_bytes: int, cost: Cost = TRUE, factor: float = 1.0) -> Run:
    return Run("", block_transactions, data_bytes, dict.fromkeys(MEASURED, factor * cost.of(block_transactions, data_bytes)))


RUNS = [run(1, 200), run(32, 200), run(500, 200), run(4_000, 200), run(800, 1024)]


def test_the_parts_that_runs_are_made_of_are_found() -> None:
    for cost in fitted(RUNS).values():
        assert (cost.per_transaction, cost.per_block, cost.per_kib) == pytest.approx((2.0, 700.0, 5.0))
        assert cost.of(100, 512) == pytest.approx(2.0 + 7.0 + 2.5)


def test_a_price_of_large_blocks_is_found_and_smaller_ones_pay_their_share() -> None:
    large = Cost(2.0, 700.0, 5.0, 400.0)
    runs = [run(blocks, data_bytes, large) for blocks, data_bytes in ((1, 200), (32, 200), (150, 200), (500, 200), (4_000, 200), (800, 1024))]
    cost = fitted(runs)["storage"]
    assert (cost.per_block, cost.per_large_block) == pytest.approx((700.0, 400.0))
    assert cost.of(LARGE_BLOCK_TRANSACTIONS / 4, 0) == pytest.approx(2.0 + 900 / (LARGE_BLOCK_TRANSACTIONS / 4))  # the root of a quarter
    assert cost.of(2 * LARGE_BLOCK_TRANSACTIONS, 0) == pytest.approx(2.0 + 1_100 / (2 * LARGE_BLOCK_TRANSACTIONS))


def test_runs_that_scatter_are_met_on_average_of_their_relative_errors() -> None:
    factors = (1.1, 0.9, 1.1, 0.9, 1.0)
    scattered = [run(each.block_transactions, each.data_bytes, factor=factor) for each, factor in zip(RUNS, factors, strict=True)]
    for each in scattered:
        found = fitted(scattered)["server"].of(each.block_transactions, each.data_bytes)
        assert found == pytest.approx(each.spent["server"], rel=0.2)


def test_nothing_costs_less_than_nothing() -> None:
    cheaper_when_large = [*RUNS[:4], run(800, 1024, Cost(0.5, 700.0, 0.0))]
    cost = fitted(cheaper_when_large)["client"]
    assert cost.per_kib == 0.0
    assert min(cost.per_transaction, cost.per_block) > 0


def test_a_plan_names_the_nodes_and_what_runs_out_first() -> None:
    model = {"client": Cost(4, 0, 0), "server": Cost(2, 0, 0), "storage": Cost(3, 0, 0), "network": Cost(1_000, 0, 0), "disk": Cost(750, 0, 0)}
    node = Node(cores=8, network_bytes_s=1e9, disk_bytes_s=1e9, busy=0.5)
    found = plan(model, 10_000_000, block_transactions=1_000, data_bytes=200, node=node)
    # servers: 20 cores of 4 usable: 5; out: 7.5 GB/s of 0.5: 15. storages: 30 cores: 7.5; in: 15; disk: 7.5 GB/s of 0.5: 15
    assert (found.clients, found.servers, found.storages) == (40, 15, 15)
    slow_disk = Node(cores=8, network_bytes_s=1e9, disk_bytes_s=0.5e9, busy=0.5)
    assert plan(model, 10_000_000, block_transactions=1_000, data_bytes=200, node=slow_disk).bottleneck == "storage: disk"
    few_cores = Node(cores=1, network_bytes_s=1e10, disk_bytes_s=1e10, busy=0.5)
    assert plan(model, 10_000_000, block_transactions=1_000, data_bytes=200, node=few_cores).bottleneck == "storage: processor"


def test_there_are_at_least_as_many_storage_nodes_as_replicas() -> None:
    model = dict.fromkeys(MEASURED, Cost(1, 0, 0))
    assert plan(model, 1_000, block_transactions=10, data_bytes=200).storages == 3
