"""Bugs to plant in how clients follow the cluster (as in `planted.py`)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from verification.mutants.planting import bug, change
from waltz_log.core.cluster_map import EVERYTHING, ClusterMap, MapPart, Register
from waltz_log.core.ports import Node
from waltz_log.security.access import AccessControl
from waltz_log.server.directory import followers
from waltz_log.server.directory.directory import Directory, View
from waltz_log.server.directory.followers import Followers

__all__: list[str] = []


@bug
def older_map_accepted() -> None:
    """A server that knows less than its follower sends what it knows, and the client believes it."""

    def apply(self: ClusterMap, epoch: int, parts: Sequence[MapPart]) -> set[str]:
        for part in parts:
            if part.base == EVERYTHING:
                self._versions.pop(part.source, None)
        return set(original(self, epoch, parts))

    change(followers, "is_behind", lambda *_: False)
    original: Any = change(ClusterMap, "apply", apply)


@bug
def version_claimed_for_what_was_not_read() -> None:
    """The newest change that a server saw in any node is the version of all of them."""

    def put(self: Directory, path: str, node: Node | None) -> None:
        original(self, path, node)
        newest = max((each.version for each in self._registers.values()), default=-1)
        for register in self._registers.values():
            register.version = newest

    original: Any = change(Directory, "_put", put)


@bug
def number_given_again_believed() -> None:
    """A server believes that a follower has what the server had at a version of the same number."""
    change(Register, "knew", lambda self, version, fingerprint: 0 < version <= self.version)


@bug
def difference_lost() -> None:
    """The first of several changed items of a source is not sent."""

    def part_since(self: Register, version: int | None) -> MapPart | None:
        part: MapPart | None = original(self, version)
        if part is None or part.base == EVERYTHING or len(part.items) < 2:
            return part
        return replace(part, items=dict(list(part.items.items())[1:]))

    original: Any = change(Register, "part_since", part_since)


@bug
def difference_lost_while_sending() -> None:
    """What changes while an answer is being sent to a slow follower counts as sent with it. The client does not notice that the next difference
    begins above what it knows."""

    async def send(self: Followers, stream: Any, view: View, *how: Any) -> dict[str, int]:
        await sent(self, stream, view, *how)
        await asyncio.sleep(0.1)
        return self._directory.versions(view)

    def apply(self: ClusterMap, epoch: int, parts: Sequence[MapPart]) -> set[str]:
        known = self._versions
        return set(applied(self, epoch, [replace(part, base=min(part.base, known.get(part.source, part.base))) for part in parts]))

    sent: Any = change(Followers, "_send", send)
    applied: Any = change(ClusterMap, "apply", apply)


# ---- rights: these show if access rules are enforced ---------------------------------------------------------------------------------------------


@bug
def topic_shown_without_a_right() -> None:
    """Every follower sees every topic."""
    change(AccessControl, "sees", lambda self, topic, peer: True)


@bug
def map_shared_between_rights() -> None:
    """Followers share the answer of the first one, whatever their rights are."""

    async def view(self: Directory, peer: Any) -> View:
        return next(iter(self._views.values()), None) or await original(self, peer)

    original: Any = change(Directory, "view", view)


@bug
def followers_need_no_right() -> None:
    """A principal that no rule permits anything follows the cluster."""
    change(Directory, "expect_member", lambda self: None)
