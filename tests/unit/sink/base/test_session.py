"""When the session of a job demands the tested version of Delta."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from waltz_delta.base import internal, session
from waltz_delta.base.session import open_session, session_properties
from waltz_delta.errors import UnsupportedDelta
from waltz_delta.landing.landing import needs_delta
from waltz_delta.settings import LandingSettings


class Session:
    """Spark with a Delta of this version; without a version, without its jars."""

    def __init__(self, version: str | None) -> None:
        system = SimpleNamespace(System=SimpleNamespace(getProperty=lambda name: "UTF-8"))

        def found() -> str:
            if version is None:
                raise TypeError("'JavaPackage' object is not callable")
            return version

        delta = SimpleNamespace(delta=SimpleNamespace(package=SimpleNamespace(VERSION=found)))
        self._jvm: Any = SimpleNamespace(io=delta, java=SimpleNamespace(lang=system))
        self.stopped = False

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> Any:
    def offer(given: Session) -> Session:
        builder = SimpleNamespace(appName=lambda name: SimpleNamespace(getOrCreate=lambda: given))
        monkeypatch.setattr(session, "SparkSession", SimpleNamespace(builder=builder))
        return given

    return offer


@pytest.mark.parametrize("version", ["4.3.0", None])
def test_another_delta_is_refused_at_the_start_only_by_a_job_that_needs_delta(spark: Any, version: str | None) -> None:
    made = spark(Session(version))
    assert (open_session("waltz ingest", delta=False), made.stopped) == (made, False)
    with pytest.raises(UnsupportedDelta):
        open_session("waltz audit")
    assert made.stopped
    good = spark(Session(internal.DELTA_VERSION))
    assert (open_session("waltz audit"), good.stopped) == (good, False)


def test_a_session_without_a_jvm_is_refused_by_every_job(spark: Any) -> None:
    remote = spark(Session(None))
    remote._jvm = None
    with pytest.raises(UnsupportedDelta, match="Spark Connect"):
        open_session("waltz ingest", delta=False)


UPSERT: dict[str, Any] = {"mode": "upsert", "keys": ["k"]}


def test_tables_of_the_arrow_engine_alone_need_no_delta_in_spark() -> None:
    def needed(*targets: dict[str, Any], **more: Any) -> bool:
        outputs = [{"target": {"table": f"/lake/t{at}", **target}} for at, target in enumerate(targets)]
        return needs_delta(LandingSettings.model_validate({"outputs": outputs, **more}))

    assert not needed({"engine": "arrow"}, {"engine": "auto"})
    assert not needed({"engine": "arrow"}, {})
    assert needed({"engine": "arrow"}, {"engine": "spark"})
    assert not needed(UPSERT, {**UPSERT, "engine": "arrow", "deletes": {"headers": [9]}})
    assert needed({"engine": "arrow"}, {**UPSERT, "engine": "spark"})
    assert not needed({**UPSERT, "sequence": "n"}, {**UPSERT, "deletes": {"headers": [9], "kind": "soft"}}, {**UPSERT, "mode": "history"})
    assert not needed({"engine": "arrow"}, dead_letters={"table": "/lake/letters"})
    assert not needed({}, dead_letters={"table": "s3a://lake/letters", "engine": "arrow"})
    assert needed({}, dead_letters={"table": "/lake/letters", "engine": "spark"})
    assert needed({"engine": "arrow"}, former_clusters=["a9f9d1de-5f7c-4a4e-9d39-50d9bd5c4c11"])


def test_the_properties_of_every_table_of_a_session_have_the_names_of_deltas_properties() -> None:
    settings = {"spark.databricks.delta.properties.defaults.appendOnly": "true", "spark.sql.session.timeZone": "UTC"}
    assert session_properties(SimpleNamespace(conf=SimpleNamespace(getAll=settings))) == {"delta.appendOnly": "true"}
