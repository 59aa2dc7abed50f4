"""What a fork waits for: gRPC's threads that end a moment after its last object, and not those of an open one."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator

import grpc
import pytest

from waltz_log.transport import inherited

LATE_S = 0.2


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """gRPC's threads end so long after its last object, as on a busy machine."""
    began_s = time.monotonic()
    gc.collect()
    monkeypatch.setattr(inherited, "_runs", lambda: time.monotonic() - began_s < LATE_S)
    yield
    inherited._State.used = False


def test_a_fork_waits_for_threads_that_nothing_needs(late: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inherited, "_needed", lambda: False)  # other tests of this process leave objects of their own
    inherited._before_fork()
    assert not inherited._State.used


def test_a_fork_does_not_wait_for_threads_of_an_open_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inherited, "_runs", lambda: True)
    monkeypatch.setattr(inherited, "ENDING_S", 60.0)  # the search for objects alone may need a second in a process that ran other tests
    channel = grpc.insecure_channel("127.0.0.1:1")
    try:
        assert inherited._needed()
        began_s = time.monotonic()
        inherited._before_fork()
        assert time.monotonic() - began_s < inherited.ENDING_S / 2
        assert inherited._State.used
    finally:
        channel.close()
        inherited._State.used = False


def test_a_fork_waits_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inherited, "_runs", lambda: True)
    monkeypatch.setattr(inherited, "_needed", lambda: False)
    monkeypatch.setattr(inherited, "ENDING_S", 0.05)
    inherited._before_fork()
    assert inherited._State.used
    inherited._State.used = False
