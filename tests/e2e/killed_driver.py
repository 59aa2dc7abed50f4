"""A driver that kills itself and its JVM with SIGKILL at a chosen place of a micro-batch. The arguments are those of `jobs/ingest.py`.

`WALTZ_TEST_GAP` names the place; `WALTZ_TEST_LAST_WORDS` a file to which the place is written, on disk, just before. A life ends at the first batch
that comes by the place, be it new or a replay. Without them it ends at the worst place of the second batch: `checkpoint`.

    offsets      the source was asked how far it goes; the offset log does not hold the batch yet
    rows         the offset log holds the batch; the sink has not begun
    commit       the sink has written its files; the table's log does not name them
    checkpoint   the table holds the batch; the checkpoint does not say so

`PAUSE` is no gap: this life waits at the first `commit` until the file of last words has a neighbor `.go`, and then lives on.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any, NoReturn

from pyspark.sql.streaming.readwriter import DataStreamReader
from pyspark.sql.types import StructType

from pyspark_waltz import DefaultSource
from waltz_delta.base import internal
from waltz_delta.engine.arrow_transaction import ArrowTransaction
from waltz_delta.jobs import job
from waltz_delta.landing.landing import Landing
from waltz_delta.pipelines import pipeline_run

GAPS = ("offsets", "rows", "commit", "checkpoint")
PAUSE = "pause"
ENGINES = (internal.TableTransaction, ArrowTransaction)


def say(gap: str, last_words: str) -> None:
    with open(last_words, "a") as file:
        file.write(f"{gap}\n")
        file.flush()
        if last_words != os.devnull:
            os.fsync(file.fileno())


def die_at(gap: str, processes: tuple[int, ...], last_words: str) -> NoReturn:
    say(gap, last_words)
    for process in processes:
        os.kill(process, signal.SIGKILL)
    os.abort()  # the source's planner, where it is the one that kills: nothing of this life goes on


def pause_first(commit: Any, last_words: str) -> Any:
    """The first commit waits; the others do not."""
    waited: list[bool] = []

    def paused(*arguments: Any, **named: Any) -> Any:
        if not waited:
            waited.append(True)
            say(PAUSE, last_words)
            while not os.path.exists(f"{last_words}.go"):
                time.sleep(0.05)
        return commit(*arguments, **named)

    return paused


def dying_sink(gap: str, batch: int | None, die: Any) -> type[Landing]:
    class Dying(Landing):
        def __call__(self, rows: Any, batch_id: int) -> None:
            fatal = batch is None or batch == batch_id
            if gap == "rows" and fatal:
                die()
            super().__call__(rows, batch_id)
            if gap == "checkpoint" and fatal:
                die()

    return Dying


def dying_source(die: Any) -> type[DefaultSource]:
    """Lives in this script, so it travels to planner processes by value, with what it holds."""

    class Dying(DefaultSource):
        @classmethod
        def name(cls) -> str:
            return "waltz_dying"

        def streamReader(self, schema: StructType) -> Any:
            reader: Any = super().streamReader(schema)
            asked = reader.latestOffset

            def latest(start: dict[str, Any], limit: Any) -> dict[str, Any]:
                end: dict[str, Any] = asked(start, limit)
                if end != start:
                    die()
                return end

            reader.latestOffset = latest
            return reader

    return Dying


def main(arguments: list[str]) -> int:
    gap, last_words = os.environ.get("WALTZ_TEST_GAP", "checkpoint"), os.environ.get("WALTZ_TEST_LAST_WORDS", os.devnull)
    batch = None if "WALTZ_TEST_GAP" in os.environ else 1
    assert gap in (*GAPS, PAUSE)
    processes = (os.getppid(), os.getpid())  # spark-submit's JVM, which started this script, goes first: nothing of it may run on

    def die(*_: Any, **__: Any) -> NoReturn:
        die_at(gap, processes, last_words)

    setattr(pipeline_run, Landing.__name__, dying_sink(gap, batch, die))
    if gap == "commit":
        for engine in ENGINES:
            engine.commit = die  # type: ignore[method-assign]
    if gap == PAUSE:
        for engine in ENGINES:
            engine.commit = pause_first(engine.commit, last_words)  # type: ignore[method-assign]
    if gap == "offsets":
        chosen = DataStreamReader.format

        def choose(self: DataStreamReader, source: str) -> DataStreamReader:
            self._spark.dataSource.register(dying_source(die))
            return chosen(self, "waltz_dying")

        DataStreamReader.format = choose  # type: ignore[method-assign]
    return job.ingest(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
