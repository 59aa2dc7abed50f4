"""Starts the sources of a job's pipelines one after the other.

Spark runs the Python processes that plan a source with variables from one map, which all queries of a JVM share and to which each start adds the same
names. The map is a plain `java.util.HashMap`: two threads that add to it at the same time can leave it with a wrong size, and then every later start
and batch in this JVM fails with "Illegal size 5 of collection, expected 6". Once the names are there, starts only replace their values.

Source: `PythonPlannerRunner` and `PythonStreamingSourceRunner` of Spark 4.2.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["one_source_starts", "wait_for_source"]

INITIALIZED_WITHIN_S: Final = 60.0
"""For a query whose source does not start: the others go on then."""

_PAUSE_S: Final = 0.02
_INITIALIZING: Final = "Initializing"
"""Begins what a query says of itself until it has made its source."""

_lock = threading.Lock()


@contextmanager
def one_source_starts() -> Iterator[None]:
    """Encloses the load of a source, and the start of a query until `wait_for_source`. Waiting for a cluster or a store does not belong in it."""
    with _lock:
        yield


def wait_for_source(query: StreamingQuery, clock: Callable[[], float] = time.monotonic) -> None:
    """Returns when the query has made its source, or has ended."""
    deadline = clock() + INITIALIZED_WITHIN_S
    while query.isActive and query.status["message"].startswith(_INITIALIZING) and clock() < deadline:
        time.sleep(_PAUSE_S)
