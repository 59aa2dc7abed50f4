"""The storage node: it keeps replicas of partitions in segment files and serves them."""

from __future__ import annotations

from waltz_log.storage.node import StorageNode
from waltz_log.storage.settings import StorageSettings

__all__ = ["StorageNode", "StorageSettings"]
