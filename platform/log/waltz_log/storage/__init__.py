"""The storage node: it keeps replicas of partitions in segment files and serves them."""

from __future__ import annotations

from waltz_log.storage.base.settings import StorageSettings
from waltz_log.storage.node.node import StorageNode

__all__ = ["StorageNode", "StorageSettings"]
