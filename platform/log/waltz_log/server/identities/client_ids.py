"""Whose a client id is: the log server gives ids with tickets, and every call that carries an id shows its ticket.

The check needs no coordinator, so it holds wherever the partition moves, and after every restart. Without TLS the transport knows no principals: ids
and tickets are given all the same, and nothing is checked.
"""

from __future__ import annotations

import hashlib
from typing import Final, NoReturn

from waltz_log.coordination.client_ids import read_ticket_key
from waltz_log.core.metadata import ClusterParameters
from waltz_log.core.ports import Coordinator, Network
from waltz_log.errors import PermissionDenied, Unavailable
from waltz_log.loggers import get_logger
from waltz_log.security.access import AccessControl
from waltz_log.security.audit_log import denied
from waltz_log.security.callers import caller
from waltz_log.security.identity import named_principal
from waltz_log.security.tickets import Tickets
from waltz_log.server.identities.issuing import ClientIdIssuer
from waltz_log.transport import waltz_pb2 as pb

__all__ = ["ClientIds"]

log = get_logger(__name__)

NO_KEY: Final = "client ids cannot be checked here, because the key of their tickets is unreadable"


class ClientIds:
    """The client ids of one server process. Call `open` before the first client is served."""

    def __init__(self, coordinator: Coordinator, network: Network, access: AccessControl) -> None:
        self._coordinator = coordinator
        self._network = network
        self._access = access
        self._tickets: Tickets | None = None
        self._issuer: ClientIdIssuer | None = None

    async def open(self, cluster: ClusterParameters, secret: bytes) -> None:
        """`secret`: random bytes that no other process knows. The first server of a cluster makes the key of its tickets from them."""
        key = await read_ticket_key(self._coordinator, lambda: hashlib.sha256(b"tickets" + cluster.key.bytes + secret).digest())
        if key is None:
            log.error("ticket key unreadable", advice="run `waltz cluster repair`, then restart the log servers")
        self._tickets = None if key is None else Tickets(cluster.key, cluster.epoch, key)
        self._issuer = ClientIdIssuer(self._coordinator, self._network, cluster.key.bytes)

    @property
    def issuer(self) -> ClientIdIssuer:
        if self._issuer is None:
            raise Unavailable(reason="the server is not started")
        return self._issuer

    async def run(self) -> None:
        """Keeps ids in stock, until cancelled."""
        await self.issuer.run()

    async def give(self) -> pb.ClientIdResponse:
        """A new id of the caller. Raises `QuotaExceeded`, `Unavailable`."""
        tickets = self._known_tickets()
        client_id = await self.issuer.issue(self.principal if self._access.enforced else None)
        return pb.ClientIdResponse(client_id=client_id, ticket=tickets.sign(client_id, self.principal))

    def sign(self, client_id: int) -> str:
        """A ticket for the caller."""
        return self._known_tickets().sign(client_id, self.principal)

    @property
    def principal(self) -> str:
        """The principal of the caller; empty without TLS."""
        return named_principal(caller()) or ""

    def owned(self, client_id: int, ticket: str) -> bool:
        """Whether the id is the caller's. Raises `Unavailable` while nothing can be checked."""
        return not self._access.enforced or self._known_tickets().proves(ticket, client_id, self.principal)

    def expect_owned(self, client_id: int, ticket: str) -> None:
        """Raises `PermissionDenied` for the id of another principal, in the same words as for one that was never given."""
        if not self.owned(client_id, ticket):
            self.deny("use")

    def expect_resolvable(self, client_id: int, ticket: str, partition: int) -> bool:
        """Whether the id is the caller's. Raises `PermissionDenied` if it is not, and the caller may not resolve for others in the partition."""
        owned = self.owned(client_id, ticket)
        if not owned and not self._access.permits_for_others(partition):
            self.deny("resolve for")
        return owned

    def deny(self, what: str) -> NoReturn:
        """Raises `PermissionDenied`, which is in the audit log then."""
        error = PermissionDenied(principal=self.principal or None, operation=what, resource="the client id of another principal")
        denied(error)
        raise error

    def _known_tickets(self) -> Tickets:
        if self._tickets is None:
            raise Unavailable(reason=NO_KEY)
        return self._tickets
