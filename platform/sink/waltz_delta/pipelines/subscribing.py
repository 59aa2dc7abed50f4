"""Reports to the log how far pipelines have landed, so that retention keeps what their tables do not hold yet (docs/guides/topics.md, Subscribers).

A pipeline with a `subscriber` registers under that name at its start if its tables hold something, otherwise with its first progress. It then
reports after batches, at most every few seconds. What it reports is landed: its tables' own marks are at least as high. The registration remains
when the job ends; `waltz subscriber remove` removes one that is no longer needed. Reports never delay a batch; if the cluster does not answer,
they are retried.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, Self
from uuid import UUID

from pyspark_waltz.options import SourceOptions
from waltz_delta.pipelines.listener import PipelineStatus, StatusBoard
from waltz_delta.pipelines.pipeline import PipelineSettings
from waltz_log.client.feed.subscribers import SyncSubscribers
from waltz_log.errors import InvalidRequest, OutOfRange, WaltzError

__all__ = ["Subscribing"]

PAUSE_S = 5.0
"""Between two reports: to keep some transactions a little longer costs less than a write for each batch."""


class Registry(Protocol):
    """The part of `SyncSubscribers` that is used here."""

    def register(self, name: str, marks: Mapping[int, int], labels: Mapping[str, str] | None = None) -> object: ...
    def report(self, name: str, marks: Mapping[int, int]) -> object: ...
    def close(self) -> None: ...


def _connect(options: SourceOptions) -> Registry:
    return SyncSubscribers(options.cluster, cluster_key=options.cluster_key)


class Subscribing:
    """A context for the life of a job. `notify` receives messages for the operator, with the pipeline's name."""

    def __init__(
        self,
        board: StatusBoard,
        pipelines: Sequence[PipelineSettings],
        notify: Callable[[str, str], None],
        *,
        connect: Callable[[SourceOptions], Registry] = _connect,
        pause_s: float = PAUSE_S,
    ) -> None:
        self._pipelines = {settings.name: settings for settings in pipelines if settings.subscriber is not None}
        self._notify = notify
        self._connect = connect
        self._pause_s = pause_s
        self._registries: dict[tuple[str, UUID | None], Registry] = {}
        self._registered: dict[str, dict[int, int]] = {}
        self._landed: dict[str, dict[int, int]] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="waltz subscribing", daemon=True)
        if self._pipelines:
            board.observe(self._heard)

    def __enter__(self) -> Self:
        if self._pipelines:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Reports what has landed since the last report."""
        self._ended.set()
        if self._pipelines:
            self._thread.join(2 * self._pause_s)
            self.report()
        for registry in self._registries.values():
            registry.close()

    def _heard(self, name: str, status: PipelineStatus, _batch: bool) -> None:
        if name in self._pipelines and status.landed:
            with self._lock:
                self._landed[name] = {partition: first - 1 for partition, first in status.landed.items()}

    def _run(self) -> None:
        while not self._ended.wait(self._pause_s):
            self.report()

    def report(self) -> None:
        """Reports the marks of every pipeline that has landed more than it reported."""
        with self._lock:
            landed = dict(self._landed)
        for name, marks in landed.items():
            if marks != self._registered.get(name):
                try:
                    self._report(self._pipelines[name], marks)
                except OutOfRange as error:
                    self._notify(name, f"is behind what the log still has, and nothing is kept for it: {error}")
                    self._registered[name] = marks
                except WaltzError as error:
                    self._notify(name, f"could not report its progress to the log: {error}")
                else:
                    self._registered[name] = marks

    def _report(self, settings: PipelineSettings, marks: Mapping[int, int]) -> None:
        options, subscriber = settings.options, str(settings.subscriber)
        cluster = options.cluster, options.cluster_key
        if cluster not in self._registries:
            self._registries[cluster] = self._connect(options)
        registry = self._registries[cluster]
        labels = {"pipeline": settings.name, "tables": ",".join(settings.tables)}
        if set(marks) != set(self._registered.get(settings.name, ())):
            registry.register(subscriber, marks, labels)
        try:
            registry.report(subscriber, marks)
        except InvalidRequest:  # the subscriber was removed
            registry.register(subscriber, marks, labels)
