"""Partitions: their owners with the history of owners, their marks, and the lag of their replicas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from waltz_log.console.console import Console
from waltz_log.console.pages.parameters import path_number, scope_of, text_of
from waltz_log.console.reading.sampling import Sample
from waltz_log.coordination.survey import PartitionState
from waltz_log.core.replica_status import ReplicaStatus
from waltz_log.core.status.server_statistics import OpenPartitionStatistics, ReplicaStatistics

__all__ = ["Row", "routes"]

HISTORY_SHOWN = 50


@dataclass(frozen=True, slots=True)
class ReplicaRow:
    """`lag`: committed transactions that it has not confirmed; None if no owner reports it."""

    name: str
    status: ReplicaStatus
    lag: int | None
    error: str | None
    reported: ReplicaStatistics | None


@dataclass(frozen=True, slots=True)
class Row:
    """A partition as the list shows it. `level`: ok, warn or bad."""

    state: PartitionState
    opened: OpenPartitionStatistics | None
    topic: str | None
    level: str
    replicas: tuple[ReplicaRow, ...]
    sparkline: tuple[float | None, ...]
    seen: int | None


def row_of(console: Console, sample: Sample, state: PartitionState) -> Row:
    opened = sample.opened.get(state.partition)
    topic = sample.topic_by_partition.get(state.partition)
    reported: Mapping[str, ReplicaStatistics] = {} if opened is None else opened.replicas
    committed = opened.committed if opened is not None else state.high_water_mark
    replicas = tuple(
        ReplicaRow(
            each.name,
            each.status,
            None if each.acknowledged is None or committed is None else max(0, committed - each.acknowledged),
            each.error,
            reported.get(each.name),
        )
        for each in state.replicas
    )
    whole = all(each.status is ReplicaStatus.LIVE for each in replicas)
    level = "bad" if not state.accepts_appends else "ok" if whole else "warn"
    history = console.sampler.history
    name = None if topic is None else str(topic[0].name)
    return Row(state, opened, name, level, replicas, history.sparkline(state.partition), history.mark(state.partition))


def routes(console: Console) -> list[Route]:
    async def listing(request: Request) -> Response:
        sample = await console.sampler.sample()
        rows = [row_of(console, sample, each) for each in sample.survey.partitions]
        wanted = text_of(request.query_params, "show")
        shown = [row for row in rows if wanted != "degraded" or row.level != "ok"]
        return console.page(
            request,
            "partitions.html",
            title="Partitions",
            rows=shown,
            degraded=sum(row.level != "ok" for row in rows),
            total=len(rows),
            filtered=wanted == "degraded",
        )

    async def one(request: Request) -> Response:
        sample = await console.sampler.sample()
        number = path_number(request, "partition")
        scope_of(sample, None, number)
        row = row_of(console, sample, sample.survey.partitions[number])
        owners = [each for each in sample.owners if each.partition == number]
        conflicts = [each for each in console.sampler.history.conflicts if each.partition == number]
        return console.page(
            request,
            "partition.html",
            title=f"Partition {number}",
            row=row,
            owners=list(reversed(owners))[:HISTORY_SHOWN],
            conflicts=conflicts[:20],
            servers=sample.survey.servers,
            subscribers=[each for each in sample.subscribers if number in each.marks],
        )

    return [Route("/partitions", listing), Route("/partitions/{partition}", one)]
