"""Bugs to plant in whose a client id is, and how often it is given (as in `planted.py`). Those of tickets show if access rules are enforced."""

from __future__ import annotations

from typing import Any

from verification.mutants.planting import bug, change
from waltz_log.core.client_ids import IdBlocks
from waltz_log.security.tickets import Tickets
from waltz_log.server.identities.client_ids import ClientIds
from waltz_log.server.identities.issuing import ClientIdIssuer
from waltz_log.server.identities.outbox_records import OutboxRecords

__all__: list[str] = []


@bug
def client_id_given_twice() -> None:
    """A server gives the first id of each block to the second client as well."""

    def give(self: IdBlocks) -> int | None:
        found = original(self)
        if found is not None and found % 1000 == 2:
            return int(found) - 1
        return int(found) if found is not None else None

    original: Any = change(IdBlocks, "give", give)


@bug
def ids_reserved_again_after_a_restore() -> None:
    """No storage node keeps which ids were reserved, so blocks that were given before a restore of the coordinator are given again."""

    async def keep(self: ClientIdIssuer, last: int) -> int:
        return 0

    change(ClientIdIssuer, "_keep", keep)


@bug
def ticket_of_another_principal_accepted() -> None:
    """A ticket proves the id for every principal."""
    original: Any = change(Tickets, "_mac", lambda self, epoch, client_id, principal: original(self, epoch, client_id, ""))


@bug
def ticket_not_checked_at_a_mount() -> None:
    """Every principal mounts for appends under every id."""
    change(ClientIds, "expect_owned", lambda self, client_id, ticket: None)


@bug
def ticket_not_checked_at_a_resolve() -> None:
    """Every principal resolves for every id, and fences its mounts for that."""
    change(ClientIds, "expect_resolvable", lambda self, client_id, ticket, partition: True)


@bug
def ticket_not_checked_at_an_outbox() -> None:
    """Every principal reads and claims every outbox."""

    async def serve(self: OutboxRecords, request: Any, cluster: Any) -> Any:
        ids = self._client_ids
        request.ticket = "" if ids._tickets is None else ids._tickets.sign(max(1, request.client_id), ids.principal)
        return await original(self, request, cluster)

    original: Any = change(OutboxRecords, "serve", serve)
