"""A port for a process of a test that cannot choose one itself."""

from __future__ import annotations

from waltz_log.processes.local_cluster import _free_port


def free_port() -> int:
    """On the loopback. The system gives it to no outgoing connection of another test before the process listens at it."""
    return _free_port(set())
