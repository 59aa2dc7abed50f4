"""The address of a cluster: the coordinator's hosts, and the path under which the cluster keeps its state. Pure."""

from __future__ import annotations

from waltz_log.errors import InvalidSetting

__all__ = ["parse_address"]


def parse_address(address: str) -> tuple[str, str]:
    """`host:port[,host:port]/path` as (hosts, root path). Raises `InvalidSetting`."""
    hosts, slash, root = address.partition("/")
    root = slash + root.rstrip("/")

    def refuse(reason: str) -> InvalidSetting:
        return InvalidSetting(name="cluster", reason=f"has {reason}: {address!r}, wanted host:port[,host:port]/root", nearest=None)

    if len(root) < 2 or "//" in root:
        raise refuse("no root path")
    for each in hosts.split(","):
        host, _, port = each.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise refuse("no host and port")
    return hosts, root
