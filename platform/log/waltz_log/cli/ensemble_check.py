"""Whether a ZooKeeper ensemble that settings name is closed to strangers: its root, and the nodes of the cluster. Only reads."""

from __future__ import annotations

from typing import Final

from waltz_log.cli.checks import Check
from waltz_log.coordination.coordinator import ZooKeeperCoordinator
from waltz_log.coordination.ensemble_root import ADVICE, ENSEMBLE_NODES
from waltz_log.core import metadata as paths
from waltz_log.core.topics.catalogue import CATALOGUE
from waltz_log.errors import WaltzError
from waltz_log.security.rules import ACCESS
from waltz_log.security.tickets import TICKET_KEY

__all__ = ["check_ensemble"]

NAME: Final = "ZooKeeper"
OF_CLUSTER: Final = (
    "",
    paths.CLUSTER,
    paths.ASSIGNMENT,
    paths.REPLICAS,
    paths.STORAGE_NODES,
    paths.SERVERS,
    paths.MANAGER,
    paths.CLIENT_IDS,
    CATALOGUE,
    ACCESS,
    TICKET_KEY,
)
UNPROTECTED: Final = (
    "prove who nodes are, with certificates in tls.coordinator_writers or WALTZ_ZOOKEEPER_SECRET (docs/guides/security.md, ZooKeeper)"
)
TIMEOUT_S: Final = 10.0


async def check_ensemble(address: str, timeout_s: float = TIMEOUT_S) -> Check:
    """`address`: as the setting `coordinator` has it. What this process presents is what a node with this environment would."""
    try:
        coordinator = await ZooKeeperCoordinator.connect(address, timeout_s=timeout_s, new=True)
    except WaltzError as error:
        return Check(NAME, False, f"{address} does not answer: {error}", "start it, or correct the address and the certificates")
    try:
        if not coordinator.protects:
            return Check(NAME, False, f"every process that reaches {address} may change everything there", UNPROTECTED, needed=False)
        found = [path for path in (*ENSEMBLE_NODES, *(coordinator.root + each for each in OF_CLUSTER)) if await coordinator.is_open(path)]
    except WaltzError as error:
        return Check(NAME, False, f"{address} does not answer: {error}", "start it, or correct the address and the certificates")
    finally:
        await coordinator.close()
    if found:
        return Check(NAME, False, f"{address} is open to everyone at {', '.join(found)}", ADVICE)
    return Check(NAME, True, f"{address} is closed to everyone but nodes and operators")
