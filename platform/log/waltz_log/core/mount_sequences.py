"""The mount sequences of a client, by which an owner fences its older mounts. Pure.

A client raises its sequence with each mount. The high bits are an epoch. A process that resolves an outcome for another client mounts in the middle
of that client's epoch: above all mounts that the client makes in the epoch, and below its next epoch, in which the client continues.
"""

from __future__ import annotations

from typing import Final

__all__ = ["is_resolving", "may_resolve_at", "recovering_above", "resolving_above"]

EPOCH_BITS: Final = 40
RESOLVING: Final = 1 << 39
"""Set in the mount sequences of a process that resolves for another client id. The low bits count connections; a client makes fewer in its life."""


def is_resolving(mount_sequence: int) -> bool:
    """Whether the mount came from a process that resolved an outcome for the client. Any other mount under a client's id acts as that client."""
    return bool(mount_sequence & RESOLVING)


def resolving_above(newest: int) -> int:
    """The mount sequence under which another process resolves, above the newest that the owner knows. Repeated calls stay in one epoch, so a
    resolve never goes beyond the mounts that the client itself can reach."""
    return newest + 1 if is_resolving(newest) else newest >> EPOCH_BITS << EPOCH_BITS | RESOLVING


def recovering_above(resolving: int) -> int:
    """The mount sequence after which a living client continues when another process has resolved an outcome for it."""
    return (resolving >> EPOCH_BITS) + 1 << EPOCH_BITS


def may_resolve_at(mount_sequence: int, newest: int) -> bool:
    """Whether another process may mount so to resolve an outcome, where `newest` is the client's newest mount (-1: none is known). A higher one would
    end the client for good, or use up its mount sequences."""
    return is_resolving(mount_sequence) and 0 <= mount_sequence <= resolving_above(max(0, newest))
