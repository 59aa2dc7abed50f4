"""What applications are tested with (docs/guides/testing.md): a cluster inside the test's process, and one of real processes.

The rest of this package is what the platform itself is tested with. Nothing is imported before it is asked for: a cluster of real processes needs
none of what the in-memory one is made of.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any  # Any: names that are imported on first use

from waltz_log.extras import explain_missing

if TYPE_CHECKING:
    from waltz_log.processes.local_cluster import LocalCluster
    from waltz_log.testing.in_memory import InMemoryCluster, SyncInMemoryCluster

__all__ = ["InMemoryCluster", "LocalCluster", "SyncInMemoryCluster"]

_WHERE = {
    "InMemoryCluster": "waltz_log.testing.in_memory",
    "LocalCluster": "waltz_log.processes.local_cluster",
    "SyncInMemoryCluster": "waltz_log.testing.in_memory",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with explain_missing(f"{__name__}.{name}", "server"):
        return getattr(import_module(_WHERE[name]), name)
