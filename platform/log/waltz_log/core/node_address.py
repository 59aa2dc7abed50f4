"""The address of a node together with the name that the cluster announces for it. Pure.

A node registers its address and the principal of its certificate in the coordinator. A process that reads the address from there must find that
principal when it connects. The address is a `str`, so that it can be compared, stored and sent like any other; the name travels with it to the one
place that connects.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import IPv4Address, ip_address
from typing import Final, Self

__all__ = ["NodeAddress", "announced_addresses", "announced_name", "same_node", "unreachable_reason"]

ZEROS: Final = re.compile(r"(0x)?0+(\.(0x)?0+){0,3}", re.IGNORECASE)
"""What the resolver accepts as 0.0.0.0."""


class NodeAddress(str):
    """`host:port`. `principal`: the name in the certificate of the node there; empty: the node announced none, as without TLS."""

    __slots__ = ("principal",)

    principal: str

    def __new__(cls, address: str, principal: str) -> Self:
        made = super().__new__(cls, address)
        made.principal = principal
        return made

    def __reduce__(self) -> tuple[type[NodeAddress], tuple[str, str]]:
        return NodeAddress, (str(self), self.principal)


def unreachable_reason(address: str) -> str | None:
    """Why no other machine can reach a node that announces this `host:port`; None: it may be reachable. A name is not resolved."""
    name, colon, _ = address.rpartition(":")
    host = name.strip("[]").partition("%")[0]
    if (colon and not host) or ZEROS.fullmatch(host):
        return "is a wildcard"
    try:
        found = ip_address(host)
    except ValueError:
        return None
    found = found if isinstance(found, IPv4Address) else found.ipv4_mapped or found
    if found.is_unspecified:
        return "is a wildcard"
    if found.is_link_local:
        return "is a link-local address"
    return "is a multicast address" if found.is_multicast else None


def announced_name(address: str) -> str | None:
    """The principal that the cluster announces for the address; empty: the node announced none. None: the address does not come from the cluster, as
    one that a person wrote."""
    return address.principal if isinstance(address, NodeAddress) else None


def announced_addresses(addresses: Iterable[str], principal: object) -> tuple[NodeAddress, ...]:
    """The addresses of one node, with the name that it announces. A value that is no text names nothing, and TLS then refuses the node."""
    name = principal if isinstance(principal, str) else ""
    return tuple(NodeAddress(each, name) for each in addresses)


def same_node(one: str, other: str) -> bool:
    """Whether a connection to the one is also a connection to the other: same address, and the same name announced for it."""
    return one == other and announced_name(one) == announced_name(other)
