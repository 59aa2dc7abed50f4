"""The two addresses of a cluster: its log servers, for everything that uses the cluster, and its coordinator, for its nodes and its operators. Pure.

Each recognizes the other: a coordinator's address ends with a path, one of log servers has none.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from waltz_log.errors import InvalidSetting

__all__ = ["SERVERS_EXAMPLE", "HostPort", "is_coordinator", "parse_coordinator", "parse_servers"]

SERVERS_EXAMPLE: Final = "host:port[,host:port]"
COORDINATOR_EXAMPLE: Final = "host:port[,host:port]/root"

ADDRESSES_MAX: Final = 64


class HostPort(NamedTuple):
    """`host`: a name or an IP address, without brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def is_coordinator(address: str) -> bool:
    """Whether it can only be the address of a coordinator."""
    return "/" in address


def parse_servers(address: str) -> tuple[HostPort, ...]:
    """The log servers named by `host:port[,host:port]`, IPv6 addresses in brackets. Raises `InvalidSetting`, also for the address of a
    coordinator."""

    def refuse(reason: str) -> InvalidSetting:
        return InvalidSetting(name="cluster", reason=f"has {reason}: {address!r}, wanted {SERVERS_EXAMPLE} of log servers", nearest=None)

    if "://" in address:
        raise refuse("a scheme")
    if is_coordinator(address):
        raise InvalidSetting(
            name="cluster",
            reason=f"is the address of a coordinator: {address!r}, clients need log servers, {SERVERS_EXAMPLE}; only nodes and operators use "
            "`coordinator`",
            nearest=None,
        )
    parts = [each.strip() for each in address.split(",")]
    if len(parts) > ADDRESSES_MAX:
        raise refuse(f"more than {ADDRESSES_MAX} hosts")
    found = []
    for each in parts:
        parsed = _host_port(each)
        if parsed is None:
            raise refuse("no host and port")
        found.append(parsed)
    return tuple(dict.fromkeys(found))


def _host_port(text: str) -> HostPort | None:
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdecimal() or not 0 < int(port) < 65536:
        return None
    if host.startswith("[") and host.endswith("]") and ":" in host:
        host = host[1:-1]
    elif ":" in host or "[" in host or "]" in host:
        return None
    return HostPort(host, int(port)) if host and not any(each.isspace() for each in host) else None


def parse_coordinator(address: str) -> tuple[str, str]:
    """`host:port[,host:port]/root` as (hosts, root path). Raises `InvalidSetting`, also for the address of log servers."""
    hosts, slash, root = address.partition("/")
    root = slash + root.rstrip("/")

    def refuse(reason: str) -> InvalidSetting:
        return InvalidSetting(name="coordinator", reason=f"has {reason}: {address!r}, wanted {COORDINATOR_EXAMPLE} of ZooKeeper", nearest=None)

    if not root and all(_host_port(each.strip()) for each in hosts.split(",")):
        raise InvalidSetting(
            name="coordinator",
            reason=f"is the address of log servers: {address!r}, nodes and operators need ZooKeeper, {COORDINATOR_EXAMPLE}; only clients use "
            "`cluster`",
            nearest=None,
        )
    if len(root) < 2 or "//" in root:
        raise refuse("no root path")
    for each in hosts.split(","):
        host, _, port = each.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise refuse("no host and port")
    return hosts, root
