"""The two kinds of addresses: what is accepted, and how each recognizes the other."""

from __future__ import annotations

import pytest

from waltz_log.core.cluster_address import ADDRESSES_MAX, HostPort, parse_coordinator, parse_servers
from waltz_log.errors import InvalidSetting


@pytest.mark.parametrize(
    ("address", "servers"),
    [
        ("log1:5101", [("log1", 5101)]),
        ("log1:5101,log2:5102", [("log1", 5101), ("log2", 5102)]),
        (" log1:5101 , log2:5102 ", [("log1", 5101), ("log2", 5102)]),
        ("log1:5101,log1:5101", [("log1", 5101)]),
        ("10.0.0.5:1,[::1]:65535", [("10.0.0.5", 1), ("::1", 65535)]),
        ("dns:53", [("dns", 53)]),
        ("waltz.prod.svc.cluster.local:5101", [("waltz.prod.svc.cluster.local", 5101)]),
    ],
)
def test_log_servers_are_hosts_with_ports(address: str, servers: list[tuple[str, int]]) -> None:
    assert list(parse_servers(address)) == [HostPort(*each) for each in servers]
    assert parse_servers(",".join(map(str, parse_servers(address)))) == parse_servers(address)


@pytest.mark.parametrize(
    "address",
    [
        "",
        ",",
        "log1",
        "log1:",
        ":5101",
        "log1:0",
        "log1:65536",
        "log1:x",
        "log1:5101,",
        "::1:5101",
        "[::1]",
        "[]:1",
        "[a]:1",
        "a b:1",
        "log1:５１０１",
    ],
)
def test_what_is_no_address_of_log_servers_is_refused(address: str) -> None:
    with pytest.raises(InvalidSetting, match=r"no host and port: .*, wanted host:port\[,host:port\] of log servers"):
        parse_servers(address)


def test_a_scheme_and_too_many_hosts_are_refused() -> None:
    with pytest.raises(InvalidSetting, match="a scheme"):
        parse_servers("dns:///log1:5101")
    with pytest.raises(InvalidSetting, match="more than 64 hosts"):
        parse_servers(",".join(f"log{n}:5101" for n in range(ADDRESSES_MAX + 1)))


def test_each_address_recognizes_the_other() -> None:
    with pytest.raises(InvalidSetting, match=r"is the address of a coordinator: 'zk:2181/waltz', clients need log servers, host:port\[,host:port\]"):
        parse_servers("zk:2181/waltz")
    with pytest.raises(InvalidSetting, match=r"is the address of log servers: 'log1:5101', nodes and operators need ZooKeeper, .*/root;"):
        parse_coordinator("log1:5101")
    assert parse_coordinator("zk1:2181,zk2:2181/waltz/main/") == ("zk1:2181,zk2:2181", "/waltz/main")
