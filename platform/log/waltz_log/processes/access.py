"""What a process that serves knows of the rules of access. Without TLS there is nothing to know: every peer may do everything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any  # Any: values of all kinds

from waltz_log.background_tasks import BackgroundTask
from waltz_log.coordination.access import AccessFollower
from waltz_log.coordination.administration import AdministrationAudit
from waltz_log.coordination.coordinator import ZooKeeperCoordinator
from waltz_log.coordination.followed import RULES, FollowedValue
from waltz_log.coordination.other_nodes import OtherNodes
from waltz_log.coordination.remembered_values import RememberedValues
from waltz_log.core.ports import Coordinator
from waltz_log.errors import ClusterUnavailable, WaltzError
from waltz_log.loggers import get_logger
from waltz_log.processes.joining import AGAIN_PAUSE_S, CONNECT_TIMEOUT_S
from waltz_log.security.access import AccessControl
from waltz_log.security.audit_log import AuditSettings
from waltz_log.security.settings import TlsSettings, chosen_tls
from waltz_log.transport.grpc import GrpcNetwork

if TYPE_CHECKING:
    from waltz_log.storage import StorageNode

__all__ = ["FollowedAccess", "access_control", "auditing", "following"]

log = get_logger(__name__)


def access_control(tls: TlsSettings | None) -> AccessControl:
    """For a process with these settings."""
    return AccessControl(enforced=chosen_tls(tls) is not None)


class FollowedAccess:
    """The rules and the topics of a storage node, which remembers them, and asks the other nodes when it starts."""

    def __init__(self, control: AccessControl, tls: TlsSettings | None, node: StorageNode) -> None:
        self._control = control
        self._known = node.known
        self._others = OtherNodes(GrpcNetwork(tls=tls), node.known, storage=node.settings.name)
        self._remembered = RememberedValues(node.settings.directory)
        self._remembered.load(node.known)
        control.remember(node.known.value(RULES))

    def follower(self, coordinator: Coordinator) -> AccessFollower:
        of_node = (coordinator, self._control)
        return AccessFollower(*of_node, topics=True, known=self._known, others=self._others, remember=self._remember)

    async def _remember(self, kind: FollowedValue[Any], data: bytes) -> None:
        await asyncio.to_thread(self._remembered.store, kind, data)


@asynccontextmanager
async def following(address: str, tls: TlsSettings | None, access: FollowedAccess | None) -> AsyncIterator[None]:
    """Follows the rules and the topics inside the block, in a session of its own. `address`: of the coordinator; `access` None: there are none to
    enforce."""
    if access is None:
        yield
        return
    task = BackgroundTask("access", lambda: _follow(address, tls, access))
    try:
        yield
    finally:
        await task.end()


@asynccontextmanager
async def auditing(audit: AuditSettings | None, administration: AdministrationAudit, coordinator: Coordinator) -> AsyncIterator[None]:
    """Records administrative actions inside the block, and those since the block before, if the node has an audit log."""
    if audit is None:
        yield
        return
    task = BackgroundTask("audit of administration", lambda: _record(administration, coordinator))
    try:
        yield
    finally:
        await task.end()


async def _record(administration: AdministrationAudit, coordinator: Coordinator) -> None:
    """Until the session ends, with which the node starts over."""
    try:
        await administration.follow(coordinator)
    except ClusterUnavailable:
        return
    except Exception:
        log.exception("administrative actions are not recorded")


async def _follow(address: str, tls: TlsSettings | None, access: FollowedAccess) -> None:
    while True:
        try:
            coordinator = await ZooKeeperCoordinator.connect(address, timeout_s=CONNECT_TIMEOUT_S, tls=tls)
            try:
                follower = access.follower(coordinator)
                await follower.read(latest=True)
                await follower.run()
            finally:
                await coordinator.close()
        except WaltzError as error:
            log.warning("rules of access are not followed, retrying", reason=str(error))
        except Exception:
            log.exception("rules of access are not followed, retrying")
        await asyncio.sleep(AGAIN_PAUSE_S)
