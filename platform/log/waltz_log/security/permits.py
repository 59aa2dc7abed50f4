"""Which role a peer needs for each procedure, and which principal a request is from. Pure.

Every procedure has a row in `PERMITTED`; a test compares the table with the procedures of the transport. For a mount the first message matters too: a
mount with a client id may append, one without only reads. The principal in a message is replaced by the name in the certificate. Only a node may
state the name under which the cluster's own processes read.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Final  # Any: messages of any method

from waltz_log.core.topics.access import CLUSTER_PRINCIPAL
from waltz_log.errors import PermissionDenied
from waltz_log.security.identity import Identity, Role

__all__ = ["PERMITTED", "admit", "attribute"]

_NODES: Final = frozenset({Role.NODE})
_OPERATORS: Final = frozenset({Role.NODE, Role.OPERATOR})
_WRITERS: Final = frozenset({Role.NODE, Role.OPERATOR, Role.APPLICATION})
_READERS: Final = frozenset(Role)
_JUDGED_LATER: Final = frozenset(Role)
"""The handler decides: it permits operators and nodes, and principals that a rule lets administer (`security.access`)."""

MOUNT: Final = "/waltz.Server/Mount"

PERMITTED: Final[Mapping[str, frozenset[Role]]] = MappingProxyType(
    {
        MOUNT: _READERS,
        "/waltz.Server/Direct": _READERS,
        "/waltz.Server/Bound": _READERS,
        "/waltz.Server/Resolve": _WRITERS,
        "/waltz.Server/Transactions": _READERS,
        "/waltz.Server/Traces": _READERS,
        "/waltz.Server/Follow": _READERS,
        "/waltz.Server/Confirm": _READERS,
        "/waltz.Server/ClientId": _WRITERS,
        "/waltz.Server/Outbox": _WRITERS,
        "/waltz.Server/Subscribers": _READERS,
        "/waltz.Server/Topics": _READERS,
        "/waltz.Server/Cluster": _JUDGED_LATER,
        "/waltz.Server/Placement": _JUDGED_LATER,
        "/waltz.Server/Status": _JUDGED_LATER,
        "/waltz.Storage/Open": _NODES,
        "/waltz.Storage/SetLowWaterMark": _NODES,
        "/waltz.Storage/KeepProgress": _NODES,
        "/waltz.Storage/KeepClientIds": _OPERATORS,
        "/waltz.Storage/Truncate": _NODES,
        "/waltz.Storage/Replicate": _NODES,
        "/waltz.Storage/Direct": _NODES,
        "/waltz.Storage/Read": _READERS,
        "/waltz.Storage/Locate": _READERS,
        "/waltz.Storage/Ping": _JUDGED_LATER,
        "/waltz.Storage/Status": _JUDGED_LATER,
        "/waltz.Storage/Describe": _NODES,
        "/waltz.Storage/Trim": _NODES,
        "/waltz.Storage/Begin": _NODES,
        "/waltz.Storage/Compact": _NODES,
        "/waltz.Storage/ReadView": _READERS,
        "/waltz.Storage/LoadView": _NODES,
        "/waltz.Storage/DropView": _NODES,
    }
)
"""By the procedure's name. A procedure that is not listed is permitted to nodes alone."""


def admit(identity: Identity | None, method: str, request: Any = None) -> None:
    """Raises `PermissionDenied` if the peer has no role that the procedure, or this request of it, permits. `request`: the first message of a
    procedure for which it matters, a mount."""
    needed = PERMITTED.get(method, _NODES)
    if method == MOUNT and request is not None and request.mount.client_id:
        needed = _WRITERS
    if identity is None or not identity.roles & needed:
        raise PermissionDenied(
            principal=None if identity is None else identity.principal, operation=method, roles=", ".join(sorted(str(role) for role in needed))
        )


def attribute(request: Any, identity: Identity) -> bool:
    """Writes the peer's name into the request, where the request says who makes it. Returns whether the request was changed."""
    path = _principal_path(request.DESCRIPTOR)
    if path is None:
        return False
    holder = request
    for name in path[:-1]:
        if not holder.HasField(name):
            return False
        holder = getattr(holder, name)
    stated = holder.principal
    principal = CLUSTER_PRINCIPAL if stated == CLUSTER_PRINCIPAL and Role.NODE in identity.roles else identity.principal
    if stated == principal:
        return False
    holder.principal = principal
    return True


@cache
def _principal_path(descriptor: Any) -> tuple[str, ...] | None:
    """The fields that lead to `principal` in a message: its own, or that of one message in it."""
    if "principal" in descriptor.fields_by_name:
        return ("principal",)
    for each in descriptor.fields:
        if each.message_type is not None and not each.is_repeated and "principal" in each.message_type.fields_by_name:
            return (str(each.name), "principal")
    return None
