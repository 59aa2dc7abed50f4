"""Sources start one after the other: two that start at once leave Spark with a damaged map of variables."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from waltz_delta.pipelines import source_starts
from waltz_delta.pipelines.source_starts import one_source_starts, wait_for_source


class Query:
    """`messages`: what it says of itself, one after the other; it has ended after the last one."""

    def __init__(self, *messages: str) -> None:
        self._messages = list(messages)

    @property
    def isActive(self) -> bool:  # the name of Spark
        return bool(self._messages)

    @property
    def status(self) -> dict[str, Any]:
        return {"message": self._messages.pop(0) if len(self._messages) > 1 else self._messages[0]}


def test_of_several_pipelines_one_starts_its_source_at_a_time() -> None:
    inside, most, done = [0], [0], [0]

    def start() -> None:
        with one_source_starts():
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            wait_for_source(Query("Initializing StreamExecution", "Initializing sources", "Getting offsets"))  # type: ignore[arg-type]
            inside[0] -= 1
            done[0] += 1

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert (most, done) == ([1], [4])


def test_a_query_that_ends_at_its_start_lets_the_others_go_on() -> None:
    ended = Query()
    wait_for_source(ended)  # type: ignore[arg-type]


def test_a_source_that_never_starts_holds_up_the_others_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_starts, "INITIALIZED_WITHIN_S", 0.1)
    began_s = time.monotonic()
    wait_for_source(Query("Initializing sources"))  # type: ignore[arg-type]
    assert 0.1 <= time.monotonic() - began_s < 10
