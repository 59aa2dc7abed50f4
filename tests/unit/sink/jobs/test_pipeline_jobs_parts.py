"""The parts of the jobs that need no Spark: how a log is cut, what a failure means, how progress and differences are reported."""

from __future__ import annotations

import io
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waltz_delta.base.job_outcome import Failure, run_job
from waltz_delta.base.stopping import SAME_REQUEST_S, StopRequest
from waltz_delta.errors import GapInTable, NotADeltaTable, WriteContended
from waltz_delta.jobs.audit import _position, _settled, audit_pipeline
from waltz_delta.jobs.audit_compare import Difference, _runs
from waltz_delta.jobs.backfill import Piece, pieces
from waltz_delta.jobs.job_progress import progress
from waltz_delta.jobs.maintain import Needs, _hours, maintain, needs_of
from waltz_delta.jobs.maintain_files import FileReport
from waltz_delta.jobs.maintained_tables import Tables
from waltz_delta.marks.marks import app_id, epoch_app_id, merge_app_id, merged_app_id
from waltz_delta.pipelines.pipeline import PipelineSettings, batch_options
from waltz_delta.pipelines.pipeline_run import start_options
from waltz_delta.settings import OutputSettings, TargetSettings
from waltz_log.errors import ClusterUnavailable, InvalidSetting

spans = st.dictionaries(st.integers(0, 6), st.tuples(st.integers(0, 40), st.integers(0, 60)))


@settings(max_examples=100, deadline=None)
@given(spans, st.integers(1, 50))
def test_pieces_are_bounded_follow_each_other_and_cover_the_log_once(spans: dict[int, tuple[int, int]], most: int) -> None:
    starts = {partition: start for partition, (start, _) in spans.items()}
    ends = {partition: start + count for partition, (start, count) in spans.items()}
    cut = list(pieces(starts, ends, most))
    seen: list[tuple[int, int]] = []
    for piece in cut:
        assert 0 < piece.transactions < most + len(spans)
        assert set(piece.starts) == set(piece.ends)
        seen += [(partition, at) for partition, start in piece.starts.items() for at in range(start, piece.ends[partition])]
    assert sorted(seen) == [(partition, at) for partition in sorted(spans) for at in range(starts[partition], ends[partition])]
    for partition in spans:
        mine = [at for each, at in seen if each == partition]
        assert mine == sorted(mine), "never out of order: a mark would rise above what is not there"


def test_all_partitions_end_together() -> None:
    cut = list(pieces({0: 0, 1: 0}, {0: 100, 1: 10}, 22))
    assert [piece.transactions for piece in cut] == [22] * 5
    assert cut[0] == Piece({0: 0, 1: 0}, {0: 20, 1: 2})
    assert cut[-1].ends == {0: 100, 1: 10}


@pytest.mark.parametrize(
    ("error", "code", "final"),
    [
        (NotADeltaTable(path="p", reason="r"), 2, True),
        (GapInTable(path="p", partition=0, first=1, last=2), 4, True),
        (WriteContended(path="p", attempts=2), 3, False),
        (ClusterUnavailable(address="a", reason="r"), 3, False),
        (RuntimeError("[STREAM_FAILED] x\n  pyspark_waltz.errors.DataLost: transactions lost to this query: partition=0\n at"), 1, True),
        (RuntimeError("[STREAM_FAILED] x\n  pyspark_waltz.errors.RangeUnreadable: no replica\n at"), 3, False),
        (RuntimeError("Python worker failed to connect back"), 1, False),
    ],
)
def test_a_failure_is_final_where_starting_again_cannot_help(error: Exception, code: int, final: bool) -> None:
    found = Failure.of(error)
    assert (found.code, found.final) == (code, final)
    assert "\n" not in found.line


def test_a_job_reports_one_line_and_the_whole_story_only_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(arguments: object) -> int:
        raise NotADeltaTable(path="p", reason="r")

    assert run_job("job", [], fail) == 2
    assert capsys.readouterr().err == "job: not a delta table: r: path=p\n"
    assert run_job("job", ["--verbose"], fail) == 2
    assert "Traceback" in capsys.readouterr().err
    assert run_job("job", [], lambda arguments: None) == 0
    assert run_job("job", [], lambda arguments: 1) == 1


def test_progress_is_a_line_now_and_then_without_a_terminal() -> None:
    out, now = io.StringIO(), [0.0]
    with progress("fill", 100, stream=out, clock=lambda: now[0]) as bar:
        for at in (1.0, 11.0, 12.0, 20.0):
            now[0] = at
            bar.advance(25)
    assert out.getvalue().splitlines() == ["fill: 50 of 100, 5/s", "fill: 100 of 100, 5/s"]


def test_progress_is_a_bar_in_a_terminal() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    with progress("fill", 4, stream=out) as bar:
        bar.advance(4)
    assert "4/4" in out.getvalue()
    with progress("fill", 1) as plain:
        assert not sys.stderr.isatty()
        plain.advance(1)


def test_neighbouring_ids_with_one_fault_are_reported_as_one() -> None:
    found = [("extra", 0, 5), ("missing", 0, 1), ("missing", 0, 2), ("missing", 0, 4), ("missing", 1, 5)]
    assert [str(each) for each in _runs(found)] == [
        "extra: partition=0 transaction_id=5",
        "missing: partition=0 transaction_id=1-2",
        "missing: partition=0 transaction_id=4",
        "missing: partition=1 transaction_id=5",
    ]
    assert list(_runs([])) == []
    assert str(Difference("changed", None, None, None, "key=1")) == "changed: key=1"


@pytest.mark.parametrize("numbered", [True, False], ids=["numbers", "positions of early tables"])
def test_an_audit_reads_no_version_between_a_merge_and_its_marks(numbered: bool) -> None:
    """A MERGE of many transactions, so that its number is far below the position of the marks before it."""
    merge, merged, mark = merge_app_id("k"), merged_app_id("k"), app_id("k", 0)
    first = {merge: 1, merged: 1, mark: 99} if numbered else {merge: 100, mark: 99}
    second = first | ({merge: 2} if numbered else {merge: 200})
    third = second | {mark: 199} | ({merged: 2} if numbered else {})

    class Log:
        version, identifiers = 9, dict[str, int]()

        def __init__(self, *newest_first: dict[str, int]) -> None:
            self.reported = newest_first

        def newest_first(self) -> Iterator[tuple[int, dict[str, int]]]:
            yield from zip(range(9, 0, -1), self.reported, strict=False)

    def settled(*versions: dict[str, int]) -> Any:
        log: Any = Log(*versions)
        return _settled(log, "k")

    assert settled(third, second, first) == (9, {0: 199})
    assert settled(second, first) == (8, {0: 99})
    assert settled({merge: 1}, {}) == (8, {}), "nor the first of a table"
    assert settled({mark: 5}) == (9, {0: 5}), "a table without merges is always settled"


def test_the_log_is_asked_when_a_tables_marks_were_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other way round a stream that goes on would be ahead of the log, which reads as another log."""
    order: list[str] = []
    mark = 9

    def settled(*_: Any) -> Any:
        order.append("marks")
        return 1, {0: mark}

    def extents() -> dict[int, tuple[int, int]]:
        order.append("log")
        return {0: (mark + 1, mark)}  # all of it is trimmed, so that no row is read

    outputs = tuple(OutputSettings(target=TargetSettings(table=name)) for name in ("a", "b"))
    pipeline = PipelineSettings(source={"cluster": "c"}, checkpoint="c", outputs=outputs)
    monkeypatch.setattr("waltz_delta.jobs.audit.AuditedTable", lambda *_: MagicMock(log=lambda: SimpleNamespace(identifiers={})))
    monkeypatch.setattr("waltz_delta.jobs.audit._settled", settled)
    audited = list(audit_pipeline(MagicMock(), pipeline, "k", extents))
    assert [each.differences for each in audited] == [[], []]
    assert order == ["marks", "log"] * 2


def test_an_audit_names_a_table_of_another_cluster_and_rows_of_former_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it can be compared, which must not read as agreement."""
    pipeline = PipelineSettings(source={"cluster": "c"}, checkpoint="c", outputs=(OutputSettings(target=TargetSettings(table="a")),))
    before = {app_id("former", 0): 9}
    monkeypatch.setattr("waltz_delta.jobs.audit.AuditedTable", lambda *_: MagicMock(log=lambda: SimpleNamespace(identifiers=before)))
    (audited,) = audit_pipeline(MagicMock(), pipeline, "k", lambda: {0: (0, 9)})
    assert [str(each) for each in audited.differences] == ["table: is filled from the cluster former, not from this one"]
    before |= {epoch_app_id("k"): 1, app_id("k", 0): -1}
    monkeypatch.setattr("waltz_delta.jobs.audit._settled", lambda *_: (1, {}))
    (audited,) = audit_pipeline(MagicMock(), pipeline, "k", lambda: {0: (0, -1)})
    assert audited.differences == []
    assert audited.notes == ["rows of former clusters (transaction_id below 0) are not in this log and cannot be audited"]


def test_options_to_keep_versions_apply_to_the_tables_that_they_name(monkeypatch: pytest.MonkeyPatch) -> None:
    spark: Any = None
    reads = {"checkpoint of a": {"id of a": 3}, "of both": {"id of a": 5, "id of letters": 1}, "of another": {"id of z": 1}}
    monkeypatch.setattr(Tables, "table_id", lambda _, path: f"id of {path}")
    monkeypatch.setattr("waltz_delta.jobs.maintain._reader_versions", lambda _, checkpoint: reads[checkpoint])
    found = needs_of(Tables(spark), Needs(hours=2.0), ["a", "b"], ["letters"], [{0: 5}], ["checkpoint of a", "of both"])
    assert found == {
        "a": Needs(hours=2.0, positions=({0: 5},), readers=("checkpoint of a", "of both")),
        "b": Needs(hours=2.0, positions=({0: 5},)),
        "letters": Needs(hours=2.0, readers=("of both",)),
    }
    with pytest.raises(InvalidSetting, match="of another is not of a stream that reads a or letters"):
        needs_of(Tables(spark), Needs(), ["a"], ["letters"], [], ["of another"])


def test_stream_options_are_dropped_from_a_batch_read_in_any_spelling() -> None:
    source = {
        "cluster": "c",
        "MaxTransactionsPerTrigger": "5",
        "maxbytespertrigger": "1m",
        "StartingTimestamp": "1700000000000",
        "minPartitions": "3",
    }
    assert batch_options(source) == {"cluster": "c", "minPartitions": "3"}
    with pytest.raises(InvalidSetting, match="cluster"):
        batch_options({"minPartitions": "3"})


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_both_processes_of_a_driver_get_is_one_request_and_a_later_one_ends_it(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    monkeypatch.setattr("waltz_delta.base.stopping.os._exit", ended.append)
    monkeypatch.setattr("waltz_delta.base.stopping.java_gateway.ensure_callback_server_started", lambda gateway: None)
    monkeypatch.setattr("waltz_delta.base.stopping.signal.signal", lambda *_: None)
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(_gateway=MagicMock()))
    now = [50.0]
    request = StopRequest(spark, clock=lambda: now[0])
    assert not request.asked
    request.request(number)
    now[0] += SAME_REQUEST_S
    request.request(number)
    assert (request.asked, ended) == (True, [])
    now[0] += 0.1
    request.request(number)
    assert ended == [128 + number]


@pytest.mark.parametrize("tables", [["--table=a", "--table=b"], ["--pipeline={file}"]], ids=["two tables", "a pipeline"])
@pytest.mark.parametrize("given", ["--keep-version=3", "--cluster-by=day"])
def test_options_of_one_table_are_refused_for_several(tables: list[str], given: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A version of one is another's, or none; it was found out when the first table had been changed."""
    file = tmp_path / "one.yaml"
    file.write_text("source: {cluster: c}\ncheckpoint: c\noutputs: [{target: {table: t}}]\n")
    assert maintain([*(each.format(file=file) for each in tables), given]) == 2
    assert f"{given.split('=')[0]} is of one table" in capsys.readouterr().err


def test_positions_and_durations_are_read_or_refused() -> None:
    assert _position("--to", '{"0": 5}') == {0: 5}
    assert _position("--to", None) == {}
    for text in ("5", '{"a": 1}', "{", '{"0": null}'):
        with pytest.raises(InvalidSetting, match="--to"):
            _position("--to", text)
    assert [_hours(text, 1.0) for text in (None, "interval 7 days", "interval 1 week 2 hours", "interval 90 minutes")] == [1.0, 168.0, 170.0, 1.5]
    assert str(FileReport(4, 4 << 20, 3, 2 << 20, 1 << 25)) == "4 files of 1.0 MiB on average, 3 of them below 32 MiB (2.0 of 4.0 MiB)"


def test_the_tables_say_where_a_stream_starts_and_the_file_where_they_hold_nothing() -> None:
    def pipeline(**source: str) -> PipelineSettings:
        return PipelineSettings(source={"cluster": "c", **source}, checkpoint="c", outputs=(OutputSettings(target=TargetSettings(table="t")),))

    assert start_options(pipeline(), {"0": 7, "1": -2}) == {"cluster": "c", "startingTransactionIds": '{"0": 7, "1": -2}'}
    by_time = pipeline(startingTimestamp="1700000000000")
    assert start_options(by_time, {"0": 7, "1": -2})["startingTransactionIds"] == '{"0": 7}', "the other begins at the time"
    assert start_options(by_time, {"0": -2}) == {"cluster": "c", "startingTimestamp": "1700000000000"}
    by_topic = pipeline(topicPattern="shop/.*", startingTransactionIds='{"shop/orders": {"1": 5}, "shop/returns": -1, "3": 2}')
    asked = json.loads(start_options(by_topic, {"0": 7, "1": -2, "2": -2, "3": 2})["startingTransactionIds"])
    assert asked == {"0": 7, "3": 2, "shop/orders": {"1": 5}, "shop/returns": -1}, "a mark goes before what is said of its topic"
    named = pipeline(startingtransactionids='{"1": 4}')
    assert start_options(named, {"0": 7, "1": 4}) == {"cluster": "c", "startingTransactionIds": '{"0": 7, "1": 4}'}
