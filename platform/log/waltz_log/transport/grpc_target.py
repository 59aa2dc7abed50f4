"""What gRPC calls the target of a channel, for an address `host:port` of this platform. Pure."""

from __future__ import annotations

from urllib.parse import quote

__all__ = ["target_of"]


def target_of(address: str) -> str:
    """With a scheme: without one, gRPC reads a host that is called `dns` or `unix` as the scheme, and reaches another host. A socket of this machine,
    `unix:/path`, is a target already."""
    if address.startswith("unix:/"):
        return address
    return f"dns:///{quote(address, safe=':')}"
