"""What `waltz cluster status` shows of replicas that are being filled."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from waltz_log.cli.cluster.cluster import show
from waltz_log.cli.cluster.fills import describe_fill, fill_of
from waltz_log.coordination.survey import PartitionState, ServerState, StorageState, Survey, SurveyedReplica
from waltz_log.core.replica_status import ReplicaStatus
from waltz_log.core.status.server_statistics import FillStatistics, OpenPartitionStatistics
from waltz_log.statistics import from_json

FILL = {
    "transactions": 1000,
    "bytes": 500_000,
    "last": 999,
    "target": 4999,
    "missing": 4000,
    "missing_bytes": 2_000_000,
    "mb_s": 1.25,
    "transactions_s": 2500.0,
    "appended_s": 500.0,
    "remaining_s": 2.0,
    "without_appends_s": 1.6,
    "outpaced": False,
}


def _shown(fill: dict[str, Any] | None) -> str:
    live = {"state": "live", "acknowledged": 4999, "holds": 4999, "error": None, "filling": None}
    filled = live if fill is None else live | {"state": "copying", "acknowledged": None, "filling": fill}
    reported = {"state": "open", "committed": 4999, "replicas": {"storage-0": live, "storage-1": filled}}
    words = (ReplicaStatus.LIVE, ReplicaStatus.LIVE if fill is None else ReplicaStatus.COPYING)
    replicas = tuple(SurveyedReplica(f"storage-{place}", word, None, None) for place, word in enumerate(words))
    partition = PartitionState(0, 1, "here:1", 1, 7, 4999, replicas, True)
    server = ServerState(1, "here:1", True, {"partitions": {"0": reported}})
    found = Survey("test", "key", (partition,), (server,), tuple(StorageState(each.name, "there:1", True, {}) for each in replicas))
    console = Console(file=StringIO(), width=220)
    show(found, console)
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def test_a_replica_that_is_being_filled_is_shown_with_progress_rate_and_time() -> None:
    shown = _shown(FILL)
    (line,) = [line for line in shown.splitlines() if "MB/s" in line]
    assert line.split(maxsplit=2)[:2] == ["0", "storage-1"]
    assert line.rstrip().endswith("1,000 of 5,000 transactions, 0.5 of 2.5 MB copied, 1.2 MB/s, 2 s left")
    assert "storage-1 copying" in shown


def test_a_complete_replica_is_not_shown_as_being_filled() -> None:
    assert "being filled" not in _shown(None)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"outpaced": True, "remaining_s": None, "without_appends_s": 600.0}, "no end at this rate, because appends arrive faster, 10 min without"),
        ({"remaining_s": 9000.0}, "2.5 h left"),
        ({"remaining_s": None, "mb_s": None, "missing_bytes": None}, "1,000 of 5,000 transactions"),
    ],
)
def test_an_estimate_is_reported_in_words(changed: dict[str, Any], expected: str) -> None:
    assert expected in describe_fill(from_json(FillStatistics, FILL | changed, unknown="refuse"))


def test_before_the_first_block_nothing_is_known() -> None:
    for fill, known in ((FILL, True), (FILL | {"last": -1, "target": -1}, False)):
        data = {"state": "open", "replicas": {"a": {"state": "copying", "filling": fill}}}
        partition = from_json(OpenPartitionStatistics, data, unknown="refuse", missing="empty")
        assert (fill_of(partition, "a") is not None) == known
        assert fill_of(partition, "b") is None
    assert fill_of(None, "a") is None
