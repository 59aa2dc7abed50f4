"""What a process that serves knows of the rules of access. Without TLS there is nothing to know: every peer may do everything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from waltz_log.coordination.access import AccessFollower
from waltz_log.coordination.administration import AdministrationAudit
from waltz_log.coordination.coordinator import ZooKeeperCoordinator
from waltz_log.coordination.followed import KnownValues
from waltz_log.core.ports import Coordinator
from waltz_log.errors import ClusterUnavailable, WaltzError
from waltz_log.loggers import get_logger
from waltz_log.security.access import AccessControl
from waltz_log.security.audit_log import AuditSettings
from waltz_log.security.remembered_rules import RememberedRules
from waltz_log.security.settings import TlsSettings, chosen_tls

__all__ = ["access_control", "auditing", "following"]

log = get_logger(__name__)

CONNECT_TIMEOUT_S = 10.0
AGAIN_PAUSE_S = 0.5
"""Before a node that lost its session connects to the coordinator again. Until then the rules that it knows apply."""


def access_control(tls: TlsSettings | None) -> AccessControl:
    """For a process with these settings."""
    return AccessControl(enforced=chosen_tls(tls) is not None)


@asynccontextmanager
async def following(
    address: str, control: AccessControl, tls: TlsSettings | None, known: KnownValues | None = None, remembered: RememberedRules | None = None
) -> AsyncIterator[None]:
    """Follows the rules and the topics inside the block, in a session of its own, if they are enforced. `address`: of the coordinator; `known`: what
    the process knows of its values; `remembered`: where it keeps the rules over a restart, if it has a disk for that."""
    if not control.enforced:
        yield
        return
    task = asyncio.ensure_future(_follow(address, control, tls, known or KnownValues(), remembered))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def auditing(audit: AuditSettings | None, administration: AdministrationAudit, coordinator: Coordinator) -> AsyncIterator[None]:
    """Records administrative actions inside the block, and those since the block before, if the node has an audit log."""
    if audit is None:
        yield
        return
    task = asyncio.ensure_future(_record(administration, coordinator))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _record(administration: AdministrationAudit, coordinator: Coordinator) -> None:
    """Until the session ends, with which the node starts over."""
    try:
        await administration.follow(coordinator)
    except ClusterUnavailable:
        return
    except Exception:
        log.exception("administrative actions are not recorded")


async def _follow(address: str, control: AccessControl, tls: TlsSettings | None, known: KnownValues, remembered: RememberedRules | None) -> None:
    while True:
        try:
            coordinator = await ZooKeeperCoordinator.connect(address, timeout_s=CONNECT_TIMEOUT_S, tls=tls)
            try:
                remember = (lambda rules: None) if remembered is None else remembered.store
                follower = AccessFollower(coordinator, control, topics=True, known=known, remember=remember)
                await follower.read(latest=True)
                await follower.run()
            finally:
                await coordinator.close()
        except WaltzError as error:
            log.warning("rules of access are not followed, retrying", reason=str(error))
        except Exception:
            log.exception("rules of access are not followed, retrying")
        await asyncio.sleep(AGAIN_PAUSE_S)
