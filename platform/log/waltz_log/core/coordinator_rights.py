"""What applications and readers may do with each path of the coordinator. Nodes and operators may do everything. Pure.

Clients find owners and replicas. Client ids, subscribers and outboxes they get and change through log servers alone. Everything else is the cluster's
own. A path that is not listed is closed to clients, so that a new one is never open by mistake.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

from waltz_log.core.metadata import ASSIGNMENT, CLUSTER, REPLICAS, STORAGE_NODES
from waltz_log.core.retention import RETAINED
from waltz_log.core.topics.catalogue import CATALOGUE

__all__ = ["Rights", "client_rights"]

Rights: TypeAlias = Literal["none", "read"]

_RIGHTS: Final[Mapping[str, Rights]] = MappingProxyType(
    {
        CLUSTER: "read",
        ASSIGNMENT: "read",
        REPLICAS: "read",
        STORAGE_NODES: "read",
        RETAINED: "read",
        CATALOGUE: "read",
    }
)


def client_rights(path: str) -> Rights:
    """Of clients, for a path below the cluster's root. What is below a listed path has its rights."""
    for start, rights in _RIGHTS.items():
        if path == start or path.startswith(f"{start}/"):
            return rights
    return "none"
