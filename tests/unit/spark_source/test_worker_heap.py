"""A worker of Spark leaves what it has loaded out of collections; other processes are left alone."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator

import pyspark
import pytest

from pyspark_waltz import worker_heap


@pytest.fixture(autouse=True)
def thawed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(worker_heap, "_begun", 0)
    monkeypatch.setattr(worker_heap, "_task", None)
    before = gc.get_freeze_count()
    yield
    if not before:
        gc.unfreeze()


class Task:
    """What of a `TaskContext` is asked for."""

    def __init__(self, attempt: int) -> None:
        self._attempt = attempt

    def taskAttemptId(self) -> int:
        return self._attempt


def test_nothing_is_frozen_outside_of_a_task() -> None:
    before = gc.get_freeze_count()
    worker_heap.task_begins()
    assert gc.get_freeze_count() == before


def test_the_first_tasks_freeze_what_is_loaded_and_later_ones_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = map(Task, itertools.count())
    monkeypatch.setattr(pyspark.TaskContext, "get", lambda: next(tasks))
    frozen = []
    kept: list[list[list[object]]] = []
    for _ in range(worker_heap.TASKS + 2):
        worker_heap.task_begins()
        frozen.append(gc.get_freeze_count())
        kept.append([[] for _ in range(5000)])
    assert frozen[0] > 10_000
    assert frozen[0] < frozen[1] < frozen[worker_heap.TASKS - 1]
    assert frozen[worker_heap.TASKS - 1] >= frozen[-1] > 10_000


def test_parts_of_one_task_freeze_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark.TaskContext, "get", lambda: Task(7))
    worker_heap.task_begins()
    frozen = gc.get_freeze_count()
    kept: list[list[object]] = [[] for _ in range(5000)]
    worker_heap.task_begins()
    assert gc.get_freeze_count() <= frozen
    assert len(kept) == 5000
