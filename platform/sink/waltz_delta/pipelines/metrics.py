"""The status of pipelines for Prometheus, on a port or in a file, and as a line for people at a terminal.

`prometheus_client` is installed by the extra `metrics`; without it only the line is available. The file is for Prometheus' node exporter (textfile
collector) or any other reader of the text format; it is replaced as a whole.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Any, NamedTuple, TextIO  # Any: prometheus-client is optional, so not imported here

from waltz_delta.pipelines.listener import PipelineStatus, StatusBoard
from waltz_delta.pipelines.metrics_port import MetricsSettings, serve_metrics
from waltz_log.errors import InvalidSetting
from waltz_log.extras import install_advice
from waltz_log.loggers import get_logger

__all__ = ["METRICS", "LiveLine", "Metric", "PrometheusMetrics", "status_line"]

log = get_logger(__name__)

FILE_INTERVAL_S = 5.0
LINE_INTERVAL_S = 0.5
BATCH_BUCKETS_S = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 300.0)


class Metric(NamedTuple):
    name: str
    kind: str
    meaning: str


METRICS = (
    Metric("waltz_pipeline_running", "gauge", "1 while the query runs, 0 while it waits for a restart and after its last failure"),
    Metric("waltz_pipeline_failures_total", "counter", "times the query failed"),
    Metric("waltz_pipeline_lag_transactions", "gauge", "transactions in the log that are not in the tables"),
    Metric("waltz_pipeline_lag_seconds", "gauge", "age of the oldest of them, also while a batch runs; 0 where there is none"),
    Metric("waltz_pipeline_log_age_seconds", "gauge", "seconds since the end of the log was read, which the lag counts to"),
    Metric("waltz_pipeline_rows_total", "counter", "transactions that all tables hold, that filters dropped or that are dead letters, each once"),
    Metric("waltz_pipeline_rows_per_second", "gauge", "these in the last batch that had any, per second from its trigger to its end"),
    Metric("waltz_pipeline_batch_seconds", "histogram", "from a batch's trigger to its end"),
    Metric(
        "waltz_pipeline_phase_seconds",
        "gauge",
        "duration of each phase of the last batch; label `phase` as in Spark, where `addBatch` is the landing",
    ),
    Metric("waltz_pipeline_dead_letters_total", "counter", "transactions written to the table of dead letters"),
    Metric("waltz_pipeline_next_transaction_id", "gauge", "first id that is not in the tables; label `partition` of the log"),
)
"""All have the label `pipeline`. Counters start when the job starts."""


class PrometheusMetrics(AbstractContextManager["PrometheusMetrics"]):
    """Serves the board's metrics within the context: at `/metrics` of the port, or in the file."""

    def __init__(self, board: StatusBoard, settings: MetricsSettings) -> None:
        try:
            import prometheus_client

            from waltz_log.monitoring.exposition import ProcessMetrics
        except ImportError:
            name = "--metrics-port" if settings.port is not None else "--metrics-file"
            reason = f"needs prometheus_client: {install_advice('metrics')}"
            raise InvalidSetting(name=name, reason=reason, nearest=None) from None
        self._client = prometheus_client
        self._board = board
        self._settings, self._file = settings, settings.file
        self.registry = prometheus_client.CollectorRegistry()
        self._batch_seconds = prometheus_client.Histogram(
            "waltz_pipeline_batch_seconds", _meaning("waltz_pipeline_batch_seconds"), ["pipeline"], buckets=BATCH_BUCKETS_S, registry=self.registry
        )
        self.registry.register(_Collector(board))
        self.registry.register(ProcessMetrics())
        self._serving = ExitStack()
        self._listening = 0
        self._ended = threading.Event()
        self._failed = False
        self._writer: threading.Thread | None = None
        board.observe(self._observe)

    def __enter__(self) -> PrometheusMetrics:
        if self._settings.port is not None:
            self._listening = self._serving.enter_context(serve_metrics(self._settings, self.registry))
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._write()
            self._writer = threading.Thread(target=self._keep_writing, name="metrics", daemon=True)
            self._writer.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        self._serving.close()
        if self._writer is not None:
            self._writer.join()
            self._write_again()

    @property
    def port(self) -> int:
        """The port it listens on, also if 0 was requested."""
        return self._listening

    def _observe(self, name: str, status: PipelineStatus, batch: bool) -> None:
        if batch:
            self._batch_seconds.labels(name).observe(status.batch_s)

    def _keep_writing(self) -> None:
        while not self._ended.wait(FILE_INTERVAL_S):
            self._write_again()

    def _write_again(self) -> None:
        """A full disk ends neither the writer nor the job. The file keeps its last contents and its time."""
        try:
            self._write()
            self._failed = False
        except OSError as error:
            if not self._failed:
                log.warning("metrics file not written", file=str(self._file), error=str(error))
            self._failed = True

    def _write(self) -> None:
        self._client.write_to_textfile(str(self._file), self.registry)


class _Collector:
    """Collects all metrics except the histogram from the board, at each scrape."""

    def __init__(self, board: StatusBoard) -> None:
        self._board = board

    def collect(self) -> Any:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        statuses = sorted(self._board.statuses().items())
        plain: dict[str, Callable[[PipelineStatus], float]] = {
            "waltz_pipeline_running": lambda status: float(status.running),
            "waltz_pipeline_failures_total": lambda status: status.failures,
            "waltz_pipeline_lag_transactions": lambda status: status.lag_transactions,
            "waltz_pipeline_lag_seconds": lambda status: status.lag_s,
            "waltz_pipeline_log_age_seconds": lambda status: status.log_age_s,
            "waltz_pipeline_rows_total": lambda status: status.rows,
            "waltz_pipeline_rows_per_second": lambda status: status.rows_per_s,
            "waltz_pipeline_dead_letters_total": lambda status: status.dead_letters,
        }
        for name, value in plain.items():
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            family = kind(name, _meaning(name), labels=["pipeline"])
            for pipeline, status in statuses:
                if status.started or not name.startswith("waltz_pipeline_lag_"):
                    family.add_metric([pipeline], value(status))
            yield family
        labelled: dict[tuple[str, str], Callable[[PipelineStatus], Mapping[Any, float]]] = {
            ("waltz_pipeline_phase_seconds", "phase"): lambda status: status.phases_s,
            ("waltz_pipeline_next_transaction_id", "partition"): lambda status: status.landed,
        }
        for (name, label), values in labelled.items():
            family = GaugeMetricFamily(name, _meaning(name), labels=["pipeline", label])
            for pipeline, status in statuses:
                for key, each in sorted(values(status).items()):
                    family.add_metric([pipeline, str(key)], each)
            yield family


def _meaning(name: str) -> str:
    return next(metric.meaning for metric in METRICS if metric.name == name)


def status_line(statuses: Mapping[str, PipelineStatus]) -> str:
    """`legs 120,000 rows, 45,000/s, batch 2.1 s, behind 3,000 (1.2 s) · aircraft …`"""
    parts = []
    for name, status in statuses.items():
        dead = f", {status.dead_letters:,} dead letters" if status.dead_letters else ""
        state = "" if status.running else " [not running]"
        parts.append(f"{name}{state} {status.rows:,} rows, {status.rows_per_s:,.0f}/s, batch {status.batch_s:.1f} s, {_behind(status)}{dead}")
    return " · ".join(parts)


def _behind(status: PipelineStatus) -> str:
    if not status.started:
        return "lag not known"
    return f"behind {status.lag_transactions:,} ({status.lag_s:.1f} s)" if status.lag_transactions else "caught up"


class LiveLine(AbstractContextManager["LiveLine"]):
    """A status line of the pipelines that updates itself if `stream` is a terminal; otherwise nothing."""

    def __init__(self, board: StatusBoard, stream: TextIO = sys.stderr) -> None:
        self._board = board
        self._stream = stream
        self._live: Any = None

    def __enter__(self) -> LiveLine:
        if self._stream.isatty():
            from rich.console import Console
            from rich.live import Live
            from rich.text import Text

            def line() -> Text:
                return Text(f"{time.strftime('%H:%M:%S')} {status_line(self._board.statuses())}", overflow="ellipsis", no_wrap=True)

            console = Console(file=self._stream)
            self._live = Live(get_renderable=line, console=console, refresh_per_second=1 / LINE_INTERVAL_S, redirect_stdout=False)
            self._live.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.__exit__(kind, error, trace)
