"""What requests of different methods have in common: the fields that a storage node checks before anything else."""

from __future__ import annotations

from typing import Protocol

__all__ = ["OfPartition", "OfReader", "OfSession", "WithKey"]


class WithKey(Protocol):
    @property
    def cluster_key(self) -> bytes: ...


class OfPartition(WithKey, Protocol):
    @property
    def partition(self) -> int: ...


class OfSession(OfPartition, Protocol):
    @property
    def session(self) -> int: ...


class OfReader(OfPartition, Protocol):
    @property
    def principal(self) -> str: ...
    @property
    def fence(self) -> int: ...
    @property
    def owner_token(self) -> bytes: ...
