"""Nodes: servers and storage nodes with their disks and workers."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from waltz_log.console.console import Console
from waltz_log.console.reading.sampling import Sample
from waltz_log.coordination.survey import ServerState, StorageState
from waltz_log.core.metadata import ReplicaMove

__all__ = ["routes"]

MOVES_SHOWN = 20


@dataclass(frozen=True, slots=True)
class ServerRow:
    state: ServerState
    owned: int
    mounts: int
    drained: bool


@dataclass(frozen=True, slots=True)
class StorageRow:
    """`replicas`: assigned to it; `live`: how many of them are connected and follow the log; `used`: share of the disk, 0 to 1, None if not known.
    `drained`: whether it gets no replicas; `leaving`: moves of its replicas in progress. `drain`: the command that drains it."""

    state: StorageState
    replicas: int
    live: int
    used: float | None
    drained: bool
    leaving: Sequence[ReplicaMove]
    drain: str


def server_rows(sample: Sample) -> list[ServerRow]:
    """Servers that left are listed as long as the assignment names them."""
    rows = []
    for each in sample.survey.servers:
        opened = [part for part in sample.opened if sample.survey.partitions[part].server_id == each.server_id] if each.answers else []
        owned = sum(part.server_id == each.server_id for part in sample.survey.partitions)
        rows.append(ServerRow(each, owned, sum(sample.opened[part].mounts for part in opened), each.address in sample.survey.drained))
    return rows


def storage_rows(sample: Sample) -> list[StorageRow]:
    rows = []
    for each in sample.survey.storages:
        held = [replica for part in sample.survey.partitions for replica in part.replicas if replica.name == each.name]
        found = each.statistics
        used = 1 - found.disk_free_bytes / found.disk_total_bytes if each.answers and found.disk_total_bytes else None
        leaving = [move for move in sample.replica_moves.values() if move.remove == each.name]
        drain = f"waltz drain $COORDINATOR {shlex.quote(each.name)}"  # its address is for nodes and operators; the console has none
        live = sum(replica.status.follows for replica in held)
        rows.append(StorageRow(each, len(held), live, used, each.name in sample.survey.drained, leaving, drain))
    return rows


def routes(console: Console) -> list[Route]:
    async def listing(request: Request) -> Response:
        sample = await console.sampler.sample()
        known = {each.server_id for each in sample.survey.servers}
        owners = {part.server_id for part in sample.survey.partitions if part.server_id is not None}
        gone = sorted(owners - known - {each.server_id for each in sample.missing})
        return console.page(
            request,
            "nodes.html",
            title="Nodes",
            servers=server_rows(sample),
            storages=storage_rows(sample),
            gone=gone,
            missing_servers=[each for each in sample.missing if each.server_id is not None],
            missing_storages=[each for each in sample.missing if each.server_id is None],
            moves_shown=MOVES_SHOWN,
            events=sample.moves[:MOVES_SHOWN],
        )

    return [Route("/nodes", listing)]
