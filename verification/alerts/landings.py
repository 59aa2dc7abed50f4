"""Pipelines without Spark: the real landing, status and metrics over the real log, whose tables commit in memory and hang when they are asked to."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Self  # Any: a DataFrame that nothing reads

from pyspark.sql.types import StructType

from pyspark_waltz.log_view import LogView
from pyspark_waltz.options import SourceOptions
from waltz_delta.landing.landing import Landing
from waltz_delta.landing.landing_progress import LandingProgress
from waltz_delta.marks.marks import BatchRange
from waltz_delta.pipelines.pipeline import PipelineSettings
from waltz_log.client.inspection.inspect import ClusterInspector
from waltz_log.client.owners.seeds import NamedServers
from waltz_log.errors import WaltzError
from waltz_log.security.settings import TlsSettings
from waltz_log.transport.grpc import GrpcNetwork

__all__ = ["HangingPipeline", "log_view"]

PAUSE_S = 0.1
"""Between two batches."""

END_S = 10.0


def log_view(options: SourceOptions, tls: TlsSettings) -> LogView:
    """The log as a job sees it that has the certificate."""
    return LogView(options, lambda given: ClusterInspector.connect_over(NamedServers(given.cluster), GrpcNetwork(tls=tls)))


class _Table:
    """Stages nothing. Its commits wait for `open`."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.open = threading.Event()
        self.open.set()

    def stage(self, *_: object) -> Self:
        return self

    def commit(self) -> None:
        self.open.wait()

    def release(self) -> None:
        """Holds nothing."""


class _Landing(Landing):
    """Lands in the given tables."""

    def __init__(self, settings: PipelineSettings, tables: list[_Table]) -> None:
        super().__init__(settings, "alerts")
        self._sinks = list[Any](tables)

    def prepare(self, *_: object) -> None:
        self._prepared = True


class _Rows:
    """A batch that no table reads."""

    sparkSession = None
    schema = StructType()


class HangingPipeline(AbstractContextManager["HangingPipeline"]):
    """Lands the log in batches, one after the other, within the context. `dead`: dead letters that it reports."""

    def __init__(self, name: str, cluster: str, outputs: int, connect: Callable[[SourceOptions], LogView]) -> None:
        targets: list[Any] = [{"target": {"table": f"{name}-{number}"}} for number in range(outputs)]
        self.settings = PipelineSettings(name=name, source={"cluster": cluster}, checkpoint="none", outputs=tuple(targets))
        self.tables = [_Table(path) for path in self.settings.tables]
        self.dead = 0
        self._landing = _Landing(self.settings, self.tables)
        self._connect = connect
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"pipeline {name}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.resume()
        self._thread.join(END_S)

    def progress(self) -> LandingProgress:
        return replace(self._landing.progress(), dead_letters=self.dead)

    def hang(self) -> None:
        """The last table commits no more, so the next batch hangs, after the commits of the other tables."""
        self.tables[-1].open.clear()

    def resume(self) -> None:
        self.tables[-1].open.set()

    def _run(self) -> None:
        view = self._connect(self.settings.options)
        while not self._ended.wait(PAUSE_S):
            try:
                extents = view.extents()
            except WaltzError:
                continue
            landed = self._landing.progress().landed
            covered = BatchRange(
                ends={p: extent.next for p, extent in extents.items()},
                starts={p: landed.get(p, extent.first) for p, extent in extents.items()},
                exact=True,
            )
            if covered.marks():
                rows: Any = _Rows()
                self._landing.write(rows, covered)
        view.close()
