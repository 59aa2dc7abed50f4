"""A port for a process of a test that cannot choose one itself."""

from __future__ import annotations

from waltz_log.processes import ports

_HELD: list[ports.HeldPort] = []
"""Until the tests end."""


def free_port() -> int:
    """On the loopback. No other test gets it."""
    _HELD.append(ports.free_port())
    return _HELD[-1].number
