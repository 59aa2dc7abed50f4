"""Which name and roles a peer has, from the names in its certificate. Pure.

A peer's principal is the first URI `spiffe://…` in the certificate's subject alternative names, or else its first DNS name. Patterns in the settings
give it roles. A `*` in a pattern stands for any text without a slash, so that a name cannot reach into another part of the path.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Identity", "Role", "identify", "matches"]

SPIFFE = "spiffe://"


class Role(StrEnum):
    NODE = "node"
    OPERATOR = "operator"
    APPLICATION = "application"
    READER = "reader"


@dataclass(frozen=True, slots=True)
class Identity:
    """`principal`: the name in the certificate. `roles` may be empty: such a peer may do nothing."""

    principal: str
    roles: frozenset[Role]


def identify(uris: Iterable[str], dns_names: Iterable[str], patterns: Mapping[Role, Sequence[str]]) -> Identity | None:
    """The peer that a certificate with these subject alternative names belongs to. None: the certificate names nothing that can be a principal."""
    principal = next((uri for uri in uris if uri.startswith(SPIFFE)), None) or next(iter(dns_names), None)
    if principal is None:
        return None
    return Identity(principal, frozenset(role for role, allowed in patterns.items() if any(matches(principal, each) for each in allowed)))


def matches(principal: str, pattern: str) -> bool:
    """Whether the whole name fits. `*` fits one or more characters other than slashes and white space; all other characters fit themselves."""
    return re.fullmatch(r"[^/\s]+".join(re.escape(part) for part in pattern.split("*")), principal) is not None
