"""The nodes of ZooKeeper that are there before any cluster is: its root, and the folder of its own. ZooKeeper opens them to everyone, so a stranger
could fill the memory of the ensemble through them, or close them to the cluster.

They are closed when a cluster is created and when `waltz zookeeper` and `waltz dev` start, if nodes can prove who they are: by a certificate or by
the shared secret. The root of an ensemble that also serves other applications stays as it is, and is reported.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Final

from waltz_log.coordination.coordinator import ZooKeeperCoordinator
from waltz_log.errors import ClusterUnavailable, PermissionDenied
from waltz_log.loggers import get_logger
from waltz_log.security.settings import TlsSettings

__all__ = ["ADVICE", "ENSEMBLE_NODES", "close_ensemble", "close_served"]

log = get_logger(__name__)

ENSEMBLE_NODES: Final = ("/", "/zookeeper", "/zookeeper/quota")
"""Absolute paths that ZooKeeper creates, with an access control list that permits everything to everyone."""

ADVICE: Final = "let only nodes and operators create and change something there (docs/guides/security.md, ZooKeeper)"

CONNECT_TIMEOUT_S: Final = 10.0


async def close_ensemble(coordinator: ZooKeeperCoordinator) -> list[str]:
    """Closes what it may close to everyone but the nodes and operators. Returns what stays open to everyone. Does nothing, and returns nothing, where
    nodes cannot prove who they are."""
    if not coordinator.protects:
        return []
    shared = await coordinator.children_of_root() - {"zookeeper", coordinator.root.split("/")[1]}
    left = []
    for path in ENSEMBLE_NODES:
        if not await coordinator.is_open(path):
            continue
        try:
            if not shared:
                await coordinator.close_node(path)
                continue
        except PermissionDenied:
            log.warning("node of zookeeper is closed to this process", path=path)
        left.append(path)
    if left:
        log.warning("zookeeper is open to everyone", paths=left, shared_with=sorted(shared), advice=ADVICE)
    return left


def close_served(address: str, tls: TlsSettings | None) -> list[str]:
    """The same for an ensemble at `host:port` that this process serves. Blocks. Raises `ClusterUnavailable`."""

    async def close() -> list[str]:
        coordinator = await ZooKeeperCoordinator.connect(f"{address}/waltz", new=True, tls=tls, timeout_s=CONNECT_TIMEOUT_S)
        try:
            return await close_ensemble(coordinator)
        finally:
            await coordinator.close()

    found: list[list[str]] = []
    failed: list[ClusterUnavailable] = []

    def run() -> None:
        try:
            found.append(asyncio.run(close()))
        except ClusterUnavailable as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="zookeeper-root")  # the caller may have an event loop of its own
    thread.start()
    thread.join()
    if failed or not found:
        raise failed[0] if failed else ClusterUnavailable(address=address, reason="the access of the root of ZooKeeper was not restricted")
    return found[0]
