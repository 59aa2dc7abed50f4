from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks.__main__ import BENCHMARKS, chosen
from benchmarks.feed import drain
from benchmarks.floor import pipelined_floor, single_floor_ms
from benchmarks.load import lock_cycle, offered, pipelined, single
from benchmarks.measurement import Measurement, merge, percentile, read, table, write
from benchmarks.setting import DATA_BYTES, LOCKS, machine_conditions
from waltz_log.client import Lock, Transaction
from waltz_log.errors import InvalidSetting, LockConflict


def figure(name: str, value: float = 1.0, **conditions: object) -> Measurement:
    return Measurement(name, value, "txn/s", conditions)


def test_a_figure_is_written_with_its_conditions_and_what_it_is_compared_with() -> None:
    found = figure("append.pipelined", 123_456.7, cores=2).compared_with(246_913.4, "floor")
    assert found.document() == {
        "name": "append.pipelined",
        "value": 123457,
        "unit": "txn/s",
        "conditions": {"cores": 2},
        "ratio": 0.5,
        "ratio_to": "floor",
    }
    assert "ratio" not in figure("feed.data").document()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_a_name_that_is_not_a_figure_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="not a figure"):
        figure("append.pipelined", value)


def test_a_ratio_without_its_other_side_is_refused() -> None:
    with pytest.raises(ValueError, match="ratio"):
        Measurement("a", 1.0, "s", {}, ratio=2.0)


def test_only_one_renews_its_figures_and_keeps_the_others(tmp_path: Path) -> None:
    path = tmp_path / "latest.json"
    write(path, [figure("append.pipelined", 1.0), figure("feed.data", 2.0)])
    write(path, [figure("append.pipelined", 3.0)])
    assert {document["name"]: document["value"] for document in json.loads(path.read_text())} == {"append.pipelined": 3.0, "feed.data": 2.0}


@pytest.mark.parametrize("content", ["", "{", "{}", "[1, {}]"])
def test_a_file_that_is_not_ours_counts_as_empty(tmp_path: Path, content: str) -> None:
    path = tmp_path / "latest.json"
    path.write_text(content)
    assert read(path) == []
    assert merge([], [figure("a")]) == [figure("a").document()]


def test_the_table_shows_shared_conditions_once() -> None:
    output = io.StringIO()
    Console(file=output, width=200).print(table([figure("append.pipelined", 5.0, cores=2, in_flight=16_000), figure("feed.data", 6.0, cores=2)]))
    assert output.getvalue().count("cores 2") == 1
    assert output.getvalue().count("in_flight 16000") == 1


def test_percentiles_are_values_that_occurred() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile(values, 1.0)) == (50.0, 99.0, 100.0)
    assert percentile([7.0], 0.5) == 7.0


def test_only_accepts_a_benchmark_or_one_of_its_figures() -> None:
    assert chosen(None) == BENCHMARKS
    assert chosen("append") == ("append",)
    assert chosen("append.pipelined_4p") == ("append",)
    with pytest.raises(InvalidSetting, match="did you mean append"):
        chosen("apend")


def test_conditions_report_a_quick_run_from_a_full_one() -> None:
    assert "quick" not in machine_conditions(quick=False)
    assert machine_conditions(quick=True)["quick"] == "yes"


def test_the_floors_measure_and_leave_nothing_behind(tmp_path: Path) -> None:
    took_ms = single_floor_ms(tmp_path, record_bytes=240, replicas=3, majority=2, count=5)
    assert len(took_ms) == 5
    assert min(took_ms) > 0
    assert pipelined_floor(tmp_path, record_bytes=240, replicas=3, count=5_000) > 0
    assert list(tmp_path.iterdir()) == []


class MemoryClient:
    """Commits in order, a step later; judges locks as the log does, by what this client has learnt so far."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.in_flight_max = 0
        self.counts: dict[int, int] = {}
        self._writers: dict[tuple[int, Lock], int] = {}
        self._known: dict[int, int] = {}

    async def append_nowait(self, partition: int, data: bytes, *, write_locks: Sequence[Lock]) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        transaction_id = self.counts.get(partition, 0)
        assert len(data) == DATA_BYTES
        (lock,) = write_locks
        if self._writers.get((partition, lock), -1) > self._known.get(partition, -1):
            raise LockConflict(partition=partition, winner=self._writers[partition, lock])
        self._writers[partition, lock] = transaction_id
        self.counts[partition] = transaction_id + 1
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight, self.in_flight_max)
        future: asyncio.Future[Any] = loop.create_future()
        loop.call_soon(self._commit, partition, transaction_id, future)
        return future

    def _commit(self, partition: int, transaction_id: int, future: asyncio.Future[Any]) -> None:
        self.in_flight -= 1
        self._known[partition] = transaction_id
        future.set_result(transaction_id)

    async def append(self, partition: int, data: bytes, *, write_locks: Sequence[Lock]) -> Any:
        return await (await self.append_nowait(partition, data, write_locks=write_locks))


async def test_the_load_keeps_its_window_full_and_never_conflicts_with_itself() -> None:
    client = MemoryClient()
    load = await pipelined(client, 50_000, window=500, partitions=(0, 1))
    assert (load.count, client.in_flight_max) == (50_000, 500)
    assert client.counts == {0: 25_000, 1: 25_000}
    assert load.rate > 0
    assert load.latencies_ms


async def test_one_at_a_time_means_one_in_flight() -> None:
    client = MemoryClient()
    load = await single(client, 20)
    assert (len(load.latencies_ms), client.in_flight_max) == (20, 1)


async def test_a_transaction_is_sent_when_it_is_due_and_not_when_the_next_one_is() -> None:
    load = await offered(MemoryClient(), 1, rate=0.5)
    assert load.latencies_ms[0] < 1_900, "the next one is due after two seconds"


async def test_a_stall_is_charged_to_all_that_was_due_meanwhile() -> None:
    class Stalling(MemoryClient):
        async def append_nowait(self, partition: int, data: bytes, *, write_locks: Sequence[Lock]) -> asyncio.Future[Any]:
            if self.counts.get(partition) == 500:
                await asyncio.sleep(0.2)
            return await super().append_nowait(partition, data, write_locks=write_locks)

    load = await offered(Stalling(), 2_000, rate=5_000)
    assert load.count == 2_000
    assert percentile(load.latencies_ms, 0.75) > 50  # 1,000 of the 2,000 were due in those 200 ms
    assert percentile(load.latencies_ms, 0.99) > 150


def test_locks_do_not_come_round_within_the_window() -> None:
    assert len(lock_cycle(1)) == LOCKS
    assert len(lock_cycle(16_000)) > 2 * 16_000


class MemoryFeed:
    def __init__(self, batches: list[list[int]]) -> None:
        self._batches = batches

    async def feed_batches(self, partition: int, after: int) -> Any:
        for batch in self._batches:
            yield [Transaction(number, 0, 0, bytes(DATA_BYTES), 1, 1, number) for number in batch]


async def test_the_feed_is_read_up_to_the_mark() -> None:
    assert await drain(MemoryFeed([[0, 1], [2, 3, 4, 5], [6]]), 0, 5) == 6


@pytest.mark.parametrize("batches", [[[0, 1], [3, 4, 5]], [[0, 1], [1, 2]], [[0, 2, 3], [4, 5]]])
async def test_a_gap_or_a_repeat_spoils_the_figure(batches: list[list[int]]) -> None:
    with pytest.raises(RuntimeError, match="gap"):
        await drain(MemoryFeed(batches), 0, 5)
