"""A call of upkeep to one replica. A failure is reported and tried again in the next round. Only a fence ends the store session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waltz_log.core.ports import CallMethod, Request, Response
from waltz_log.errors import Fenced, WaltzError
from waltz_log.loggers import get_logger
from waltz_log.server.replication.replica_session import ReplicaSession

if TYPE_CHECKING:
    from waltz_log.server.replication.store_session import StoreSession

__all__ = ["ask"]

log = get_logger(__name__)


async def ask(store: StoreSession, replica: ReplicaSession, method: CallMethod[Request, Response], request: Request) -> Response | None:
    """None if it does not do it; it is asked again in the next round."""
    try:
        return await replica.ask(method, request)
    except Fenced as error:
        store.fenced(error)
    except WaltzError as error:
        log.info("upkeep call to a replica failed", partition=store.partition, replica=replica.name, method=method.name, error=str(error))
    return None
