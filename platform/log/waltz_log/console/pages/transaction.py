"""One transaction: what it says, who sent it, which replicas hold it, and which appends lost to it."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from waltz_log.client.inspection.transaction_trace import trace
from waltz_log.console.console import Console, Link
from waltz_log.console.pages.parameters import path_number, scope_of
from waltz_log.console.pages.transactions import line_of
from waltz_log.console.payloads import show_payload
from waltz_log.console.reading.sampled_history import Conflict
from waltz_log.console.reading.transaction_reader import Entry
from waltz_log.core.formats.envelope import split_keyed
from waltz_log.errors import NotAllowed

__all__ = ["routes"]

TRACE_TIMEOUT_S = 3.0
CONFLICTS_SHOWN = 20
BEFORE_MS = 60_000
"""How long before a transaction its sender's rejected appends are shown with it: a client that lost reads on and appends again."""


def routes(console: Console) -> list[Route]:
    async def show(request: Request) -> Response:
        sample = await console.sampler.sample()
        partition, transaction_id = path_number(request, "partition"), path_number(request, "transaction_id")
        scope_of(sample, None, partition)
        entry = await console.reader.one(sample, partition, transaction_id)
        line = line_of(console, sample, entry)
        topic = sample.topic_by_partition.get(partition)
        data = entry.data or b""
        keyed = split_keyed(data) if topic is not None and topic[0].keyed else None
        lost, won = _conflicts(console, entry)
        panels = [panel for extension in console.extensions for panel in extension.transaction_panels(partition, transaction_id)]
        panels.append(Link("Replicas", f"/transactions/{partition}/{transaction_id}/replicas"))
        return console.page(
            request,
            "transaction.html",
            title=f"Transaction {transaction_id:,}",
            line=line,
            entry=entry,
            payload=show_payload(data if keyed is None else keyed.value, hidden=line.hidden),
            last=console.sampler.history.mark(partition),
            won=won[:CONFLICTS_SHOWN],
            lost=lost[:CONFLICTS_SHOWN],
            panels=panels,
        )

    async def raw(request: Request) -> Response:
        """The payload as it is, for a program. Never shown by the browser: it is a download of no type."""
        sample = await console.sampler.sample()
        partition, transaction_id = path_number(request, "partition"), path_number(request, "transaction_id")
        scope_of(sample, None, partition)
        found = sample.topic_by_partition.get(partition)
        topic = None if found is None else found[0]
        console.access.expect_read(partition, topic)
        if console.hides(sample, partition):
            raise NotAllowed(action="read", topic="" if topic is None else str(topic.name), principal=console.settings.principal)
        entry = await console.reader.one(sample, partition, transaction_id)
        name = f"transaction-{partition}-{transaction_id}.bin"
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        return Response(entry.data or b"", media_type="application/octet-stream", headers=headers)

    async def replicas(request: Request) -> Response:
        partition, transaction_id = path_number(request, "partition"), path_number(request, "transaction_id")
        owners = await console.link.owners()
        found = await trace(owners, partition, transaction_id, principal=console.link.principal, timeout_s=TRACE_TIMEOUT_S)
        return console.part("transaction_replicas.html", found=found)

    place = "/transactions/{partition:int}/{transaction_id:int}"
    return [Route(place, show), Route(f"{place}/raw", raw), Route(f"{place}/replicas", replicas)]


def _conflicts(console: Console, entry: Entry) -> tuple[list[Conflict], list[Conflict]]:
    """The appends that its sender had tried shortly before and lost, and those that lost to it."""
    lost, won = [], []
    for each in console.sampler.history.conflicts:
        if each.partition != entry.partition:
            continue
        if each.winner == entry.transaction_id:
            won.append(each)
        elif each.client_id == entry.client_id and 0 <= entry.time_ms - each.time_ms <= BEFORE_MS and each.winner < entry.transaction_id:
            lost.append(each)
    return lost, won
