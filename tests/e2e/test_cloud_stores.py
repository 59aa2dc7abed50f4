"""Pipelines on Azure and Google, each with an emulator and without a jar of Hadoop's: appends, upserts and letters of two drivers, and maintenance.

Marked `install`, as `tests/integration/sink/test_lake_stores.py`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.e2e.letters import KEY, ROWS, Died, landing, one_commit_each, raw
from verification.lake.emulators import CREDENTIALS, EMULATORS, emulated, lacking
from verification.lake.place import Place
from waltz_delta.dead_letters_replay import replay
from waltz_delta.engine.compaction import Compacted
from waltz_delta.jobs.maintain import Needs, maintain_table
from waltz_delta.jobs.maintained_tables import chosen
from waltz_delta.landing.landing import Landing, needs_delta
from waltz_delta.settings import LandingSettings

pytestmark = [pytest.mark.install, pytest.mark.timeout(900)]


@pytest.fixture(scope="module", params=EMULATORS)
def store(request: pytest.FixtureRequest, spark: Any) -> Iterator[Place]:
    if missing := lacking(request.param):
        pytest.skip(missing)
    with emulated(request.param) as place, pytest.MonkeyPatch.context() as patched:
        if CREDENTIALS in os.environ:  # for the tasks, as `spark.executorEnv` does it when Spark starts
            patched.setitem(spark.sparkContext.environment, CREDENTIALS, os.environ[CREDENTIALS])
        yield place


class Tables:
    """Of one pipeline: everything appended, the newest row of each key, and dead letters."""

    def __init__(self, place: Place, name: str) -> None:
        self.storage = dict(place.storage)
        self.appended, self.keyed, self.dead = (f"{place.location}/{name}/{each}" for each in ("all", "keyed", "dead"))

    def settings(self, columns: str = "k STRING NOT NULL, n INT", select: str = "k, n") -> LandingSettings:
        outputs = landing(Path(), columns=columns).model_dump(mode="json")["outputs"]
        for output, path in zip(outputs, (self.appended, self.keyed), strict=True):
            output["target"] |= {"table": path, "storage": self.storage}
        outputs[0]["projection"]["select"] = select
        return landing(Path(), outputs=outputs, dead_letters={"table": self.dead, "storage": self.storage})

    def read(self, path: str, *columns: str) -> list[tuple[Any, ...]]:
        found = DeltaTable(path, storage_options=self.storage).to_pyarrow_table(columns=list(columns)).to_pylist()
        return sorted((tuple(row[name] for name in columns) for row in found), key=repr)


@pytest.fixture
def without_delta(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of Delta in the session may be used, as without its jars."""
    for name in ("check_versions", "TableTransaction", "transaction_versions", "table_version"):
        monkeypatch.setattr(f"waltz_delta.base.internal.{name}", _not_there)


def _not_there(*_: Any, **__: Any) -> Any:
    raise AssertionError("Delta in Spark is used")


BURIED = [(0, 1), (0, 2), (0, 3), (1, 0), (1, 1)]


def test_a_pipeline_lands_each_transaction_once_although_a_driver_dies_and_two_go_on(
    spark: Any, store: Place, monkeypatch: pytest.MonkeyPatch, without_delta: None
) -> None:
    tables, batch = Tables(store, "landed"), raw(spark, ROWS)
    settings = tables.settings()
    assert not needs_delta(settings)
    with monkeypatch.context() as patched:
        one_commit_each(patched)
        with pytest.raises(Died):
            Landing(settings, KEY).write(batch)
    start, raised = threading.Barrier(2), list[BaseException]()

    def run() -> None:
        made = Landing(settings, KEY)
        start.wait(60)
        try:
            made.write(batch)
        except BaseException as error:
            raised.append(error)

    drivers = [threading.Thread(target=run) for _ in range(2)]
    for driver in drivers:
        driver.start()
    for driver in drivers:
        driver.join(240)
    assert raised == []
    Landing(settings, KEY).write(batch)
    assert tables.read(tables.appended, "transaction_id", "k", "n") == [(0, "a", 1)]
    assert tables.read(tables.keyed, "k", "n") == [("a", 1)]
    letters = tables.read(tables.dead, "target", "partition", "transaction_id")
    assert len(letters) == len(set(letters))
    assert sorted({letter[1:] for letter in letters}) == BURIED


def test_letters_are_replayed_and_tables_maintained(spark: Any, store: Place, without_delta: None) -> None:
    tables = Tables(store, "maintained")
    for end in (1, 4, 7):
        Landing(tables.settings(), KEY).write(raw(spark, ROWS[:end]))
    fixed = tables.settings("k STRING NOT NULL, n STRING", "k, try_cast(n AS INT) AS n")
    fixed_outputs = fixed.model_dump(mode="json")
    fixed_outputs["outputs"] = fixed_outputs["outputs"][:1]
    landed = {each.table: each.landed for each in replay(spark, LandingSettings.model_validate(fixed_outputs))}
    assert landed[tables.appended] == 2
    assert tables.read(tables.appended, "transaction_id") == [(0,), (1,), (3,)]
    replayed = [row[:2] for row in tables.read(tables.dead, "partition", "transaction_id", "target", "replayed_at") if row[3] is not None]
    assert replayed == [(0, 1), (0, 3)]
    found = chosen(spark, [tables.appended], "auto", {tables.appended: tables.storage})
    done = maintain_table(found, tables.appended, Needs(hours=0.0), small_bytes=1 << 20)
    assert (done.engine, done.compacted) == ("arrow", Compacted(removed=done.before.files, added=1))
    assert tables.read(tables.appended, "transaction_id") == [(0,), (1,), (3,)]
