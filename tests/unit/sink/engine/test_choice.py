"""What the engine of a table says of its choice, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any  # Any: a session that answers what is asked of it

import pytest

from tests.unit.sink.base.asked_session import Session
from waltz_delta.engine import choice
from waltz_delta.engine.choice import EngineChoice, TableEngine
from waltz_log.errors import InvalidSetting

LARGE = "the table is too large"


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Engine and reason of each line."""
    lines: list[tuple[str, str]] = []
    monkeypatch.setattr(choice, "log", SimpleNamespace(info=lambda event, *, table, engine, reason: lines.append((engine, reason))))
    return lines


def engine(path: Path, wanted: EngineChoice) -> TableEngine:
    return TableEngine(str(path), wanted, {})


def test_a_batch_for_spark_is_logged_when_the_engine_changes_and_not_each_time(tmp_path: Path, logged: list[tuple[str, str]]) -> None:
    made = engine(tmp_path, "auto")
    for _ in range(2):
        made.report()
    for reason in (LARGE, LARGE, "the batch is too large", LARGE):
        made.leave_to_spark(reason)
    made.report()
    engines = [line[0] for line in logged]
    reasons = [line[1] for line in logged]
    assert engines == ["arrow", "spark", "spark", "spark", "arrow"]
    assert reasons[1:4] == [LARGE, "the batch is too large", LARGE]


def test_the_engine_arrow_refuses_what_spark_would_have_to_write(tmp_path: Path, logged: list[tuple[str, str]]) -> None:
    with pytest.raises(InvalidSetting, match=rf"engine is arrow, and {LARGE}: table="):
        engine(tmp_path, "arrow").leave_to_spark(LARGE)
    assert logged == []


def test_the_default_is_not_logged(tmp_path: Path, logged: list[tuple[str, str]]) -> None:
    engine(tmp_path, "spark").report()
    assert logged == []


@pytest.mark.parametrize(("wanted", "is_arrow"), [("auto", False), ("arrow", True)])
def test_where_spark_has_a_log_store_by_its_configuration_only_the_setting_arrow_chooses_arrow(
    wanted: EngineChoice, is_arrow: bool, logged: list[tuple[str, str]]
) -> None:
    """That of DynamoDB does not see a conditional put: a writer of the same table that uses it could replace the commit."""
    store = "io.delta.storage.S3DynamoDBLogStore"
    plain: Any = Session("plain")
    asked: Any = Session("named", spark__delta__logStore__s3a__impl=store)
    made = TableEngine("s3a://lake/legs", wanted, {})
    assert (made.arrow(asked) is not None) == is_arrow
    made.report()
    assert ("engine" if is_arrow else store) in logged[0][1]
    assert TableEngine("s3a://lake/legs", wanted, {}).arrow(plain) is not None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.databricks.delta.autoCompact.enabled", "true"),
        ("spark.databricks.delta.autoCompact.enabled", "auto"),
        ("spark.databricks.delta.optimizeWrite.enabled", "true"),
        ("spark.sql.files.maxRecordsPerFile", "1000"),
        ("spark.hadoop.parquet.crypto.factory.class", "org.example.Factory"),
    ],
)
def test_what_the_session_asks_of_each_writer_is_left_to_spark(tmp_path: Path, name: str, value: str, logged: list[tuple[str, str]]) -> None:
    asked: Any = Session(f"asked {name}", **{name.replace(".", "__"): value})
    made = TableEngine(str(tmp_path), "auto", {})
    assert made.arrow(asked) is None
    made.report()
    assert logged[0][0] == "spark"
    assert name in logged[0][1]
    off: Any = Session(f"off {name}", **{name.replace(".", "__"): "0" if value.isdecimal() else "false"})
    assert TableEngine(str(tmp_path), "auto", {}).arrow(off) is not None
    assert TableEngine(str(tmp_path), "arrow", {}).arrow(asked) is not None


def test_a_store_that_only_spark_can_reach_stays_with_spark() -> None:
    """As a table in MinIO with one driver, whose endpoint and keys are in Spark's configuration."""
    reach = {"spark__hadoop__fs__s3a__endpoint": "http://minio:9000"}
    single: Any = Session("single", spark__waltz__singleDriver="true", **reach)
    several: Any = Session("several", **reach)
    assert TableEngine("s3a://lake/legs", "auto", {}).arrow(single) is None
    assert TableEngine("s3a://lake/legs", "auto", {"AWS_REGION": "eu-west-1"}).arrow(single) is not None
    assert TableEngine("s3a://lake/legs", "auto", {}).arrow(several) is not None, "Spark's engine would refuse it"


AZURE = "abfss://lake@acme.dfs.core.windows.net/legs"


@pytest.mark.parametrize(
    ("path", "scheme", "storage"),
    [(AZURE, "abfss", {"AZURE_STORAGE_ACCOUNT_NAME": "acme"}), ("gs://lake/legs", "gs", {"GOOGLE_BASE_URL": "https://storage.example.com"})],
)
def test_a_table_on_azure_or_google_that_spark_can_reach_stays_with_spark_unless_storage_is_set(
    path: str, scheme: str, storage: dict[str, str], logged: list[tuple[str, str]]
) -> None:
    """Spark's engine writes such tables safely, so one that exists must not change its engine with a release."""
    reached: Any = Session("reached")
    reached.file_systems = (scheme,)
    lacking: Any = Session("lacking")
    made = TableEngine(path, "auto", {})
    assert made.arrow(reached) is None
    made.report()
    assert logged[0] == ("spark", f"Spark has a file system for {scheme}:, and the setting storage is empty")
    assert TableEngine(path, "auto", storage).arrow(reached) is not None
    assert TableEngine(path, "arrow", {}).arrow(reached) is not None
    found = TableEngine(f"{path}/", "auto", {}).arrow(lacking)
    assert found is not None
    assert found.location == path


@pytest.mark.parametrize("wanted", ["auto", "arrow"])
def test_an_option_that_only_one_library_follows_leaves_the_table_to_spark(wanted: EngineChoice) -> None:
    plain: Any = Session("plain")
    made = TableEngine(AZURE, wanted, {"AZURE_STORAGE_TOKEN": "x"})
    if wanted == "auto":
        assert made.arrow(plain) is None
        assert "AZURE_STORAGE_TOKEN" in made.reason
        return
    with pytest.raises(InvalidSetting, match="AZURE_STORAGE_TOKEN"):
        made.arrow(plain)
