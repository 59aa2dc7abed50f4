"""The ends of a job: its first connection, and the line that it prints for each table when it is done."""

from __future__ import annotations

import pytest

from pyspark_waltz.log_view import CONNECT_TIMEOUT_S
from pyspark_waltz.options import SourceOptions
from waltz_delta.pipelines import pipeline_run
from waltz_delta.tables.finished import TableOutcome
from waltz_log.client.inspection import inspect
from waltz_log.errors import ClusterUnavailable


def test_the_line_names_version_rows_and_marks() -> None:
    outcome = TableOutcome("var/tables/seats", 3, 17, 20, {11: 4, 2: 14})
    reported = 'version=3 rows=17 transactions=20 dead_letters=2 marks={"2": 14, "11": 4}'
    assert outcome.line("seats", 2) == f"done seats table=var/tables/seats {reported}"


def test_a_table_that_no_batch_made_has_no_version() -> None:
    assert TableOutcome("t", None, None, 0, {}).line("p", 0) == "done p table=t version=none rows=0 transactions=0 dead_letters=0 marks={}"


def test_a_job_gives_its_first_connection_the_time_that_is_given_for_fetches(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def refuse(cluster: str, timeout_s: float, _key: object) -> None:
        asked.append(timeout_s)
        raise ClusterUnavailable(address=cluster, reason="nobody")

    monkeypatch.setattr(inspect, "ClusterInspector", refuse)
    for options in ({"fetchTimeoutMs": "1500"}, {}):
        with pytest.raises(ClusterUnavailable):
            pipeline_run.contact(SourceOptions.parse({"cluster": "h:1", **options}))
    assert asked == [1.5, CONNECT_TIMEOUT_S]
