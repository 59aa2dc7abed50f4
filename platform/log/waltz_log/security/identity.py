"""Which name and roles a peer has, from the names in its certificate. Pure.

A peer's principal is the URI `spiffe://…` in the certificate's subject alternative names, or else its first DNS name. Patterns in the settings give
it roles. A `*` in a pattern stands for any text without a slash, so that a name cannot reach into another part of the path. Each kind of name is read
as what it is: a DNS name that is no host name, such as one that looks like a URI, names nothing, because an authority may sign any text there. A
certificate with several such URIs names nothing either (SPIFFE, X.509-SVID, section 2).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final

__all__ = ["Identity", "Role", "counted_principal", "identify", "matches", "named_principal"]

SPIFFE = "spiffe://"

PATTERNS_MAX: Final = 4096
"""Patterns that are remembered in parts: those of the settings and of all rules."""

_HOST_NAME: Final = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*")
"""A DNS name that can be a principal. A wildcard names no one."""

_BOUNDARY: Final = re.compile(r"([/\s])")
"""What no star fits."""


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


def named_principal(peer: Identity | None) -> str | None:
    """The name of the peer. None: a peer of a transport that does not know its peers."""
    return None if peer is None else peer.principal


def counted_principal(peer: Identity | None) -> str | None:
    """The principal whose costs count (`core.costs`). None: a node, whose work is the cluster's, or a peer of a transport that does not know its
    peers."""
    return None if peer is None or Role.NODE in peer.roles else peer.principal


def identify(uris: Iterable[str], dns_names: Iterable[str], patterns: Mapping[Role, Sequence[str]]) -> Identity | None:
    """The peer that a certificate with these subject alternative names belongs to. None: the certificate names nothing that can be a principal."""
    ids = [uri for uri in uris if uri.startswith(SPIFFE)]
    if len(ids) > 1:
        return None
    principal = ids[0] if ids else next((name for name in dns_names if _HOST_NAME.fullmatch(name)), None)
    if principal is None:
        return None
    return Identity(principal, frozenset(role for role, allowed in patterns.items() if any(matches(principal, each) for each in allowed)))


def matches(principal: str, pattern: str) -> bool:
    """Whether the whole name fits. `*` fits one or more characters other than slashes and white space; all other characters fit themselves."""
    wanted = _pieces(pattern)
    given = _BOUNDARY.split(principal)
    return len(given) == len(wanted) and all(map(_fits, given, wanted))


@lru_cache(maxsize=PATTERNS_MAX)
def _pieces(pattern: str) -> list[list[str]]:
    """What is between stars, for each piece between the characters that no star fits, and for these characters themselves."""
    return [piece.split("*") for piece in _BOUNDARY.split(pattern)]


def _fits(text: str, parts: list[str]) -> bool:
    """Whether the text consists of the parts with something between each two. Each part is searched from left to right, because all stars are alike.
    A regular expression would try all ways to distribute the text among many stars."""
    first, *middle = parts
    if not middle:
        return text == first
    last, end = middle.pop(), len(first)
    for part in middle:
        found = text.find(part, end + 1)
        if found < 0:
            return False
        end = found + len(part)
    return text.startswith(first) and text.endswith(last) and len(text) - len(last) > end
