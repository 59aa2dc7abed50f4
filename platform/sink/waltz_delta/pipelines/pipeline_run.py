"""Runs pipelines in one Spark application, each in a thread with its own query: a failed one is restarted, and stops none of the others.

If a restart cannot help (a table of another schema, a checkpoint ahead of its table), the pipeline ends at once, otherwise after the attempts that
its settings allow. The application ends when every pipeline has ended: after a stop signal, at the end of the log with the trigger `available-now`,
or after giving up. It does not start at all if no server answers at the address of any pipeline.

`landing` decides what is committed when and how often; nothing in this module could lose or repeat a row.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Protocol

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_waltz.log_view import inspect_cluster
from pyspark_waltz.options import SourceOptions
from pyspark_waltz.range_rows import transactions_schema
from waltz_delta.base.checkpoints import CHECKPOINTS
from waltz_delta.base.file_systems import require_file_system
from waltz_delta.base.job_outcome import Failure
from waltz_delta.base.session import open_session
from waltz_delta.base.stopping import StopRequest
from waltz_delta.landing.batch_traces import BatchTraces, OwnersMemory
from waltz_delta.landing.landing import Landing, needs_delta
from waltz_delta.pipelines.listener import PipelineListener, StatusBoard
from waltz_delta.pipelines.log_watch import LogWatch
from waltz_delta.pipelines.metrics import LiveLine, PrometheusMetrics
from waltz_delta.pipelines.metrics_port import MetricsSettings
from waltz_delta.pipelines.pipeline import PipelineSettings
from waltz_delta.pipelines.source_starts import one_source_starts, wait_for_source
from waltz_delta.pipelines.subscribing import Subscribing
from waltz_delta.tables.finished import table_outcome
from waltz_log.errors import InvalidSetting, WaltzError
from waltz_log.exit_codes import FAILED, OK
from waltz_log.extras import explain_missing
from waltz_log.outside_text import printable

__all__ = ["PipelineRun", "contact", "run_pipelines", "start_options"]

BATCH_PATIENCE_S = 15.0
"""How long a running batch may continue after a stop request. Then it is aborted, and its rows land at the next start."""

CHECKPOINTS_PATIENCE_S = 30.0
"""How long the session waits at its end for a checkpoint of a table's log that is being written."""


class Stopping(Protocol):
    """The part of `StopRequest` that is used here."""

    @property
    def asked(self) -> bool: ...
    def wait(self, seconds: float) -> bool: ...


def run_pipelines(job: str, pipelines: Sequence[PipelineSettings], metrics: MetricsSettings) -> int:
    """Returns the exit code: 0 if every pipeline ended without a failure, that of the failures if they agree, 1 otherwise. Raises the error of a
    pipeline that runs alone, and errors that prevent the start of all."""
    _refuse_shared(pipelines)
    _contact_one(pipelines)
    board = StatusBoard()
    with ExitStack() as stack:
        if metrics.port is not None or metrics.file is not None:
            stack.enter_context(PrometheusMetrics(board, metrics))
        spark = open_session(f"waltz {job}", delta=any(map(needs_delta, pipelines)))
        stack.callback(spark.stop)
        stack.callback(CHECKPOINTS.settle, CHECKPOINTS_PATIENCE_S)
        stop = StopRequest(spark)
        listener = PipelineListener(board)
        spark.streams.addListener(listener)
        stack.callback(spark.streams.removeListener, listener)
        stack.enter_context(LiveLine(board))
        alone = len(pipelines) == 1

        def notify(name: str, line: str) -> None:
            print(printable(f"{job}: {line}" if alone else f"{job}: {name}: {line}"), file=sys.stderr, flush=True)

        stack.enter_context(Subscribing(board, pipelines, notify))
        stack.enter_context(LogWatch(board, pipelines))
        runs = [PipelineRun(spark, settings, board, stop, notify, ready=_print_ready, done=_print_line) for settings in pipelines]
        for run in runs:
            run.start()
        while any(run.is_alive() for run in runs):
            for run in runs:
                run.join(0.1)
    failed = [run for run in runs if run.failure is not None]
    if alone and failed and runs[0].error is not None:
        raise runs[0].error
    codes = {run.failure.code for run in failed if run.failure is not None}
    for run in failed:
        assert run.failure is not None
        notify(run.name, f"given up: {run.failure.line}")
    return OK if not codes else codes.pop() if len(codes) == 1 else FAILED


def contact(options: SourceOptions) -> tuple[str, tuple[int, ...]]:
    """Key of the cluster, and the partitions of the log that the options select."""
    with inspect_cluster(options) as inspector:
        wanted = options.wanted_partitions(inspector.catalogue)
        return str(inspector.parameters.key), tuple(range(inspector.parameters.partitions)) if wanted is None else wanted


class PipelineRun(threading.Thread):
    """One pipeline from its start to its end. Then `failure` says why it was given up, and `error` is the exception; both are None if it ended
    without a failure."""

    source = "waltz"
    contact = staticmethod(contact)
    """How the cluster is reached. A subclass may replace it (tests do)."""

    def __init__(
        self,
        spark: SparkSession,
        settings: PipelineSettings,
        board: StatusBoard,
        stop: Stopping,
        notify: Callable[[str, str], None],
        *,
        ready: Callable[[PipelineSettings], None] = lambda settings: None,
        done: Callable[[str], None] = lambda line: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name=settings.name, daemon=True)
        self._spark = spark
        self._settings = settings
        self._board = board
        self._stop_request = stop
        self._notify = notify
        self._ready = ready
        self._done = done
        self._before: dict[str, dict[int, int]] = {}
        self._dead_letters = 0
        self._clock = clock
        self._traces: BatchTraces | None = None
        self.failure: Failure | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with _batch_traces(self._settings) as self._traces:
                self._run_queries()
        except ModuleNotFoundError as error:
            self.failure, self.error = Failure.of(error), error

    def _run_queries(self) -> None:
        failures = 0
        while not self._stop_request.asked:
            began_s = self._clock()
            try:
                self._query_once()
            except Exception as error:
                self._board.ended(self.name, failed=True)
                failure = Failure.of(error)
                if failure.counts:
                    failures = 1 if self._clock() - began_s > self._settings.restart.healthy_s else failures + 1
                if failure.final or failures > self._settings.restart.attempts_max or _session_ended(self._spark):
                    self.failure, self.error = failure, error
                    return
                pause_s = self._settings.restart.pause_after(max(1, failures))
                self._notify(self.name, f"{failure.line} (starting again in {pause_s:g} s)")
                self._stop_request.wait(pause_s)
            else:
                self._board.ended(self.name, failed=False)
                return

    def _query_once(self) -> None:
        settings = self._settings
        require_file_system(self._spark, settings.checkpoint, "checkpoint")
        key, partitions = self.contact(settings.options)
        landing = Landing(settings, key, self._traces)
        if not self._before:  # a restarted query continues the same run
            self._before = landing.marks(self._spark)
        starting = json.loads(landing.starting_transaction_ids(self._spark, partitions, otherwise=settings.options.starting))
        options = start_options(settings, starting) | {"mode": "ranges"}  # tasks of the tables' engine read the transactions
        with one_source_starts():
            rows = self._spark.readStream.format(self.source).options(**options).load()
        landing.prepare(self._spark, transactions_schema(rows.schema), settings.checkpoint)
        self._board.add(self.name, landing.progress)
        writer = rows.writeStream.queryName(self.name).option("checkpointLocation", settings.checkpoint).foreachBatch(landing)
        with one_source_starts():
            query = (writer.trigger(availableNow=True) if settings.once else writer.trigger(processingTime=settings.trigger)).start()
            wait_for_source(query)
        self._ready(settings)
        try:
            self._follow(query)
        except Exception:
            if landing.failed is not None:
                raise landing.failed from None
            raise
        finally:
            self._dead_letters += landing.statistics().dead_letters
        for _, sink in landing.outputs if not self._stop_request.asked else ():
            self._done(table_outcome(self._spark, sink, self._before[sink.path]).line(self.name, self._dead_letters))

    def _follow(self, query: StreamingQuery) -> None:
        """Returns when the query ends or a stop is requested. Raises if the query failed."""
        while not query.awaitTermination(1):
            if self._stop_request.asked:
                deadline = self._clock() + BATCH_PATIENCE_S
                while query.isActive and query.status["isTriggerActive"] and self._clock() < deadline:
                    time.sleep(0.05)
                query.stop()
                return


@contextmanager
def _batch_traces(settings: PipelineSettings) -> Iterator[BatchTraces | None]:
    if settings.tracing is None:
        yield None
        return
    with explain_missing("the setting `tracing`", "tracing"):
        from waltz_log.telemetry.exporting_tracer import exporting_tracer

        tracer = exporting_tracer("waltz-pipeline", settings.name, settings.tracing)
    options = settings.options
    traces = BatchTraces(settings.name, tracer, OwnersMemory(options.cluster, options.cluster_key, options.principal))
    try:
        yield traces
    finally:
        traces.close()


def _session_ended(spark: SparkSession) -> bool:
    """Whether the JVM has ended, so that no query can start any more."""
    try:
        list(spark.streams.active)
    except Exception:
        return True
    return False


def start_options(settings: PipelineSettings, starting: Mapping[str, int]) -> dict[str, str]:
    """The source's options with the start that follows from the tables. A partition of which they hold nothing begins as the pipeline declares,
    possibly by time."""
    source = {name: value for name, value in settings.source.items() if name.lower() != "startingtransactionids"}
    options = settings.options
    by_topic = options.starting.topics
    left_open = options.starting_times is not None or by_topic
    named: dict[str, object] = {p: at for p, at in starting.items() if at >= 0 or not left_open or int(p) in options.starting.given}
    named |= {topic: said if isinstance(said, int) else {str(p): at for p, at in said.items()} for topic, said in by_topic.items()}
    return source | {"startingTransactionIds": json.dumps(named)} if named else source


def _print_ready(settings: PipelineSettings) -> None:
    print(f"ready {settings.name} table={','.join(settings.tables)} cluster={settings.options.cluster}", flush=True)


def _print_line(line: str) -> None:
    print(printable(line), flush=True)


def _refuse_shared(pipelines: Sequence[PipelineSettings]) -> None:
    used: dict[tuple[str, str], str] = {}
    for settings in pipelines:
        for what, value in (("name", settings.name), ("checkpoint", settings.checkpoint), *(("table", table) for table in settings.tables)):
            other = used.setdefault((what, value.rstrip("/")), settings.name)
            if other != settings.name or (what == "name" and sum(each.name == value for each in pipelines) > 1):
                raise InvalidSetting(name=what, reason=f"is {value} in two pipelines, {other} and {settings.name}", nearest=None)


def _contact_one(pipelines: Sequence[PipelineSettings]) -> None:
    """Before a JVM is started: raises the first error if no pipeline's cluster answers."""
    errors: list[WaltzError] = []
    for options in {settings.options.cluster: settings.options for settings in pipelines}.values():
        try:
            contact(options)
        except WaltzError as error:
            errors.append(error)
        else:
            return
    raise errors[0]
