"""The first page: whether the cluster is healthy, its rates, and what needs attention."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from waltz_log.console.console import Console
from waltz_log.console.reading.sampling import Sample
from waltz_log.console.rendering import time
from waltz_log.core.replica_status import ReplicaStatus

__all__ = ["Concern", "concerns_of", "routes"]

CONCERNS_SHOWN = 12
CONFLICTS_SHOWN, MOVES_SHOWN = 6, 6


@dataclass(frozen=True, slots=True)
class Concern:
    """Something that an operator should see. `level`: bad or warn; `path`: where more is known."""

    level: str
    text: str
    path: str


def concerns_of(sample: Sample) -> list[Concern]:
    """The worst first."""
    found: list[Concern] = []
    for each in sample.survey.partitions:
        place = f"/partitions/{each.partition}"
        if each.high_water_mark is None:
            found.append(Concern("bad", f"Partition {each.partition} has no owner that answers: it accepts no appends.", place))
        elif not each.accepts_appends:
            found.append(Concern("bad", f"Partition {each.partition} has no majority of replicas: it accepts no appends.", place))
    for server in sample.survey.servers:
        if not server.answers:
            found.append(Concern("bad", f"Server {server.server_id} at {server.address} does not answer.", "/nodes"))
    found += [Concern("bad", f"{each.title} is missing: it last answered at {time(each.seen_ms)} UTC.", "/nodes") for each in sample.missing]
    for storage in sample.survey.storages:
        if not storage.answers:
            found.append(Concern("bad", f"Storage node {storage.name} does not answer.", "/nodes"))
        elif storage.statistics.space != "ample":
            found.append(Concern("warn", f"The disk of {storage.name} is {storage.statistics.space}.", "/nodes"))
    silent = {storage.name for storage in sample.survey.storages if not storage.answers}
    for each in sample.survey.partitions:
        for replica in each.replicas:
            if replica.status is not ReplicaStatus.LIVE and replica.name not in silent and each.high_water_mark is not None:
                text = f"Replica {replica.name} of partition {each.partition} is {replica.status}."
                found.append(Concern("warn", text, f"/partitions/{each.partition}"))
    return sorted(found, key=lambda concern: concern.level != "bad")


def routes(console: Console) -> list[Route]:
    async def show(request: Request) -> Response:
        sample = await console.sampler.sample()
        concerns = concerns_of(sample)
        points = console.sampler.history.points
        newest = points[-1] if points else None
        return console.page(
            request,
            "overview.html",
            title="Overview",
            sample=sample,
            concerns=concerns[:CONCERNS_SHOWN],
            more_concerns=max(0, len(concerns) - CONCERNS_SHOWN),
            newest=newest,
            missing_servers=sum(each.server_id is not None for each in sample.missing),
            missing_storages=sum(each.server_id is None for each in sample.missing),
            committed=sum(each.high_water_mark + 1 for each in sample.survey.partitions if each.high_water_mark is not None),
            accepting=sum(each.accepts_appends for each in sample.survey.partitions),
            conflicts=console.sampler.history.conflicts[:CONFLICTS_SHOWN],
            moves=sample.moves[:MOVES_SHOWN],
        )

    async def history(_request: Request) -> Response:
        """The points of the charts: seconds since 1970, appended and rejected per second."""
        points = list(console.sampler.history.points)
        columns = [[each.time_ms / 1000 for each in points], [each.appended for each in points], [each.rejected for each in points]]
        return JSONResponse(columns)

    return [Route("/", show), Route("/history.json", history)]
