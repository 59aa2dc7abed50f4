"""What a replay of dead letters does in which order, and that a dry run does none of it. No JVM: the plans are stand-ins."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from waltz_delta import dead_letters_replay
from waltz_delta.dead_letters_replay import Replayed, replay
from waltz_delta.settings import LandingSettings

LETTERS = MagicMock()


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two clusters have letters; of two tables the second has none that would land."""
    done: list[str] = []
    landed = {"a": 3, "b": 0}

    class Try:
        def __init__(self, *_: Any) -> None:
            """The plans are in no step."""

        def land(self, spark: Any, sink: Any) -> None:
            done.append(f"{cluster_of(done)}: {sink.path} lands")

        def report(self, table: str) -> Replayed:
            return Replayed(table, landed[table], 1, 0)

        def release(self) -> None:
            """No plan is held."""

    def made(settings: Any, cluster: str) -> Any:
        return SimpleNamespace(outputs=[("way", SimpleNamespace(path=table, begin=lambda spark, table=table: table)) for table in landed])

    stands_in = {
        "Landing": made,
        "_Try": Try,
        "_done": lambda own, tries: [table for table, _ in tries],
        "_require_written": lambda spark, sink: None,
        "follow_restore": lambda spark, table, cluster, begin: done.append(f"{cluster}: marks of {table} taken back"),
        "_mark": lambda spark, letters, cluster, settled: done.append(f"{cluster}: letters of {'+'.join(settled)} marked"),
        "DeadLetters": SimpleNamespace(declared=lambda letters, cluster: LETTERS),
        "partial": lambda *_: None,
        "f": MagicMock(),
    }
    for name, value in stands_in.items():
        monkeypatch.setattr(dead_letters_replay, name, value)
    return done


def cluster_of(done: list[str]) -> str:
    return done[-1].split(":")[0]


def run(*, dry_run: bool) -> list[Replayed]:
    spark = MagicMock()
    LETTERS.begin().rows().where().persist().select().distinct().orderBy().collect.return_value = [("k",), ("l",)]
    outputs: Any = [{"target": {"table": "a"}}, {"target": {"table": "b"}}]
    return replay(spark, LandingSettings(outputs=outputs, dead_letters={"table": "dead"}), dry_run=dry_run)  # type: ignore[arg-type]


def test_letters_are_marked_when_all_that_can_has_landed(steps: list[str]) -> None:
    assert [each.landed for each in run(dry_run=False)] == [3, 0] * 2
    assert steps == [
        f"{cluster}: {step}"
        for cluster in ("k", "l")
        for step in ("marks of a taken back", "a lands", "marks of b taken back", "letters of a+b marked")
    ]


def test_a_dry_run_reports_the_same_and_changes_nothing(steps: list[str]) -> None:
    reported = run(dry_run=True)
    assert steps == []
    assert reported == run(dry_run=False)
