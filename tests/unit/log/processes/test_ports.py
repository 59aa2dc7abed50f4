"""Ports between their choice and the process that listens there."""

from __future__ import annotations

import socket

import pytest

from waltz_log.processes import ports
from waltz_log.processes.ports import HOST, HeldPort, free_port
from waltz_log.transport.addresses import ReservedAddress


def _listening(*options: int) -> socket.socket:
    found = socket.socket()
    for option in options:
        found.setsockopt(socket.SOL_SOCKET, option, 1)
    return found


def test_no_other_cluster_gets_a_held_port(monkeypatch: pytest.MonkeyPatch) -> None:
    held = free_port()
    monkeypatch.setattr(ports, "PORTS", range(held.number, held.number + 1))
    monkeypatch.setattr(ports, "ATTEMPTS", 1)
    second = free_port()
    assert second.number != held.number
    held.close()
    third = free_port()
    assert third.number == held.number
    second.close()
    third.close()


@pytest.mark.parametrize("options", [(socket.SO_REUSEADDR,), (socket.SO_REUSEPORT,), (socket.SO_REUSEADDR, socket.SO_REUSEPORT)])
def test_the_process_that_a_port_is_held_for_listens_there(options: tuple[int, ...]) -> None:
    held = free_port()
    with _listening(*options) as process, socket.socket() as client:
        process.bind((HOST, held.number))
        process.listen()
        client.connect((HOST, held.number))
    held.close()


def test_a_node_whose_workers_share_a_port_reserves_a_held_one() -> None:
    held = free_port()
    reserved = ReservedAddress(f"{HOST}:{held.number}")
    assert reserved.address == f"{HOST}:{held.number}"
    reserved.close()
    held.close()


def test_a_port_that_two_clusters_know_from_before_goes_to_one_of_them() -> None:
    held = free_port()
    with pytest.raises(OSError, match="in use"):
        HeldPort(held.number)
    held.close()
    again = HeldPort(held.number)
    again.close()


def test_a_port_at_which_a_stranger_listens_is_refused() -> None:
    with _listening(socket.SO_REUSEADDR) as stranger:
        stranger.bind((HOST, 0))
        stranger.listen()
        with pytest.raises(OSError, match="in use"):
            HeldPort(stranger.getsockname()[1])
