"""The identities of the processes of a simulated cluster with access rules, and what the rules permit."""

from __future__ import annotations

from typing import Final

from waltz_log.security.identity import Identity, Role
from waltz_log.security.rules import AccessRules, Operation, Rule

__all__ = ["IMPOSTOR", "INTRUDER", "PARTNER", "PARTNER_TOPIC", "RULES", "identity_of"]

INTRUDER: Final = "intruder"
IMPOSTOR: Final = "impostor"
PARTNER: Final = "partner"
PARTNER_TOPIC: Final = "sim/memory-0"

RULES: Final = (
    AccessRules()
    .granted(Rule(principal="spiffe://sim/application/*", operations=tuple(Operation), resource="*"))
    .granted(Rule(principal="spiffe://guest/application/*", operations=(Operation.APPEND, Operation.READ), resource="*"))
    .granted(Rule(principal="spiffe://partner/application/*", operations=(Operation.READ,), resource=PARTNER_TOPIC))
)
"""What the other clients may do: everything. An impostor may append and read under client ids of its own, a partner reads one topic."""


def identity_of(host: str) -> Identity:
    """The identity in the certificate of a process on that host."""
    if host.startswith(("storage-", "server-")):
        return Identity(f"spiffe://sim/node/{host}", frozenset({Role.NODE}))
    if host == "operator":
        return Identity("spiffe://sim/operator/operator", frozenset({Role.OPERATOR}))
    domains = {INTRUDER: "elsewhere", IMPOSTOR: "guest", PARTNER: "partner"}
    domain = next((found for kind, found in domains.items() if host.startswith(kind)), "sim")
    return Identity(f"spiffe://{domain}/application/{host}", frozenset({Role.APPLICATION}))
