"""The identities of the processes of a simulated cluster with access rules, and what the rules permit."""

from __future__ import annotations

from typing import Final

from waltz_log.security.identity import Identity, Role
from waltz_log.security.rules import AccessRules, Operation, Rule

__all__ = ["IMPOSTOR", "INTRUDER", "RULES", "identity_of"]

INTRUDER: Final = "intruder"
IMPOSTOR: Final = "impostor"

RULES: Final = (
    AccessRules()
    .granted(Rule(principal="spiffe://sim/application/*", operations=tuple(Operation), resource="*"))
    .granted(Rule(principal="spiffe://guest/application/*", operations=(Operation.APPEND, Operation.READ), resource="*"))
)
"""What the other clients may do: everything. An impostor may append and read under client ids of its own."""


def identity_of(host: str) -> Identity:
    """The identity in the certificate of a process on that host."""
    if host.startswith(("storage-", "server-")):
        return Identity(f"spiffe://sim/node/{host}", frozenset({Role.NODE}))
    if host == "operator":
        return Identity("spiffe://sim/operator/operator", frozenset({Role.OPERATOR}))
    domain = "elsewhere" if host.startswith(INTRUDER) else "guest" if host.startswith(IMPOSTOR) else "sim"
    return Identity(f"spiffe://{domain}/application/{host}", frozenset({Role.APPLICATION}))
