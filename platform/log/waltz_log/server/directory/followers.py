"""Serves the map of the cluster to clients: a stream's first answer brings what the follower lacks, later ones what changed (`core.cluster_map`).

Each follower has a cursor: the versions that were sent to it. A slow one gets the differences of several changes merged into one, and waits in its
own task, so it delays no other and nothing queues up for it. Followers with the same rights and the same cursor share the bytes of an answer. A
stream ends after a random time, so that followers spread again over the servers, and rights that were revoked while this server was cut off end.

Followers that do not read keep no other from its first answer: places for first answers go to principals in turns, and become free after a second.
What a follower has not read by then counts as unread of its principal (`transport.unread`), and a principal without room for more is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from random import Random
from typing import Final

from waltz_log.core.cluster_map import TOPICS_SOURCE, MapPart, chunks, is_behind
from waltz_log.core.fair_counts import FairCounts
from waltz_log.core.messages import Encoded
from waltz_log.core.ports import Sender
from waltz_log.core.status.server_statistics import FollowerStatistics
from waltz_log.errors import ClusterUnavailable, ConnectionLost, QuotaExceeded, Unavailable
from waltz_log.security.callers import caller
from waltz_log.security.identity import named_principal
from waltz_log.server.base.fair_places import FairPlaces
from waltz_log.server.directory.directory import Directory, View
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.unread import Room, Unread

__all__ = ["Followers"]

HEARTBEAT_S: Final = 5.0
"""Between two messages of a stream at most. They say how old the server's knowledge is."""

BEHIND_S: Final = 1.0
"""How long a follower that knows more than this server waits for it to catch up."""

SEND_S: Final = 30.0
"""A follower that does not read for so long is ended."""

LIFE_S: Final = (600.0, 1200.0)
"""After which time a stream ends."""

CHUNK_BYTES: Final = 256 * 1024

SENDING_MAX: Final = 32
"""Followers that are sent a first answer at once: the transport copies each answer, of up to megabytes. Others wait, their principals in turns."""

PLACE_S: Final = 1.0
"""After which time a first answer is sent without a place, to a follower that reads slowly: shorter than clients wait for the first message."""

ROOM_S: Final = 1.0
"""For room for a first answer among what the principal does not read."""

RETRY_S: Final = 5.0

CONFIRM_S: Final = 2.0
"""For a read of the coordinator that clients wait for."""

SHARED_MAX: Final = 64
"""Answers with different cursors that are kept until the next change."""


class Followers:
    """The followers of one process. `count_max`: how many it serves; one principal may be half of them. `unread`: of followers alone. None: no
    limit."""

    def __init__(self, directory: Directory, key: bytes, count_max: int, rng: Random, unread: Unread | None = None) -> None:
        self._directory = directory
        self._key = key
        self._rng = rng
        self._counts = FairCounts(count_max)
        self._unread = unread or Unread(0)
        self._first_answers = FairPlaces(SENDING_MAX, PLACE_S)
        self._shared: dict[tuple[View, tuple[tuple[str, int], ...]], list[bytes]] = {}
        self._shared_at = -1
        self._sent_bytes = 0
        self._refused = 0

    @property
    def count(self) -> int:
        return self._counts.count

    def statistics(self) -> FollowerStatistics:
        return FollowerStatistics(self.count, self._sent_bytes, self._refused, round(self._directory.age_s, 3))

    async def follow(self, request: pb.FollowRequest, stream: Sender[pb.FollowResponse]) -> None:
        """Until the follower is gone, does not read any more, or the stream's time is over. Raises `QuotaExceeded` if there are too many, or too much
        is unread, `PermissionDenied` for one without any right, and `Unavailable` if this server knows an older state than the follower."""
        peer = caller()
        self._directory.expect_member()
        principal = named_principal(peer) or ""
        with self._counted(principal):
            stated = {each.source: each.version for each in request.versions}
            await self._catch_up(stated, request.epoch)
            epoch, view = self._directory.epoch, await self._directory.view(peer)
            cursor = self._directory.known(view, request.versions) if request.epoch == epoch else {}
            loop = asyncio.get_running_loop()
            ends_s = loop.time() + self._rng.uniform(*LIFE_S)
            is_first = True
            revision, rights = -1, self._directory.rights
            while loop.time() < ends_s:
                if revision != self._directory.revision:
                    revision = self._directory.revision
                    if rights != self._directory.rights:
                        rights = self._directory.rights
                        self._directory.expect_member()
                    before, view = view, await self._directory.view(peer)
                    if before is not view:
                        cursor.pop(TOPICS_SOURCE, None)
                    if epoch != self._directory.epoch:
                        epoch, cursor = self._directory.epoch, {}
                    if is_first:
                        is_first = False
                        async with self._first_answers.place(principal):
                            cursor = await self._send(stream, view, cursor, ROOM_S)
                    else:
                        cursor = await self._send(stream, view, cursor)
                else:
                    await self._send_message(stream, b"", more=False)
                await self._wait(revision, min(HEARTBEAT_S, ends_s - loop.time()))

    @contextmanager
    def _counted(self, principal: str) -> Iterator[None]:
        if not self._counts.fits(principal):
            self._refused += 1
            raise QuotaExceeded(partition=-1, quota="followers_max", principal=principal, topic="", retry_after_s=RETRY_S)
        with self._counts.one(principal):
            yield

    async def _catch_up(self, stated: Mapping[str, int], epoch: int) -> None:
        directory = self._directory

        async def behind() -> bool:
            return is_behind(directory.versions(await directory.view(caller())), directory.epoch, stated, epoch)

        deadline = asyncio.get_running_loop().time() + BEHIND_S
        while await behind():
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                raise Unavailable(reason="this server knows an older state of the cluster")
            await self._wait(directory.revision, left)

    async def _wait(self, revision: int, timeout_s: float) -> None:
        """Until the next change, or so long."""
        try:
            async with asyncio.timeout(max(0.0, timeout_s)):
                await self._directory.changed.wait_for(lambda: self._directory.revision != revision)
        except TimeoutError:
            return

    # ---- answers ---------------------------------------------------------------------------------------------------------------------------------

    async def _send(self, stream: Sender[pb.FollowResponse], view: View, cursor: Mapping[str, int], room_s: float = SEND_S) -> dict[str, int]:
        """Returns the cursor after it. `room_s`: how long to wait for room. The answer is in memory meanwhile, so a first one, which no other
        follower may share, waits only as long as it has a place."""
        answers = self._answers(view, cursor)
        reached = self._directory.versions(view)
        async with await self._room(sum(map(len, answers)), room_s):
            for at, answer in enumerate(answers, 1):
                await self._send_message(stream, answer, more=at < len(answers))
        return reached

    async def _room(self, size: int, timeout_s: float) -> Room:
        peer = caller()
        try:
            async with asyncio.timeout(timeout_s):
                return await self._unread.acquire(peer, size)
        except TimeoutError:
            raise self._unread.exceeded(named_principal(peer)) from None

    def _answers(self, view: View, cursor: Mapping[str, int]) -> list[bytes]:
        if self._shared_at != self._directory.revision:
            self._shared.clear()
            self._shared_at = self._directory.revision
        key = view, tuple(sorted(cursor.items()))
        found = self._shared.get(key)
        if found is None:
            parts = self._directory.parts_since(view, cursor)
            found = [pb.FollowResponse(parts=map(_message, chunk)).SerializeToString() for chunk in chunks(parts, CHUNK_BYTES)]
            if len(self._shared) < SHARED_MAX:
                self._shared[key] = found
        return found

    async def _send_message(self, stream: Sender[pb.FollowResponse], shared: bytes, *, more: bool) -> None:
        """What is shared, followed by what is true now: protobuf reads the fields of both as one message."""
        age_ms = int(1000 * self._directory.age_s)
        own = pb.FollowResponse(cluster_key=self._key, epoch=self._directory.epoch, age_ms=age_ms, more=more).SerializeToString()
        self._sent_bytes += len(shared) + len(own)
        try:
            async with asyncio.timeout(SEND_S):
                await stream.send(Encoded.of_pieces(pb.FollowResponse, (shared, own)))
        except TimeoutError:
            raise ConnectionLost(address="follower", reason=f"did not read for {SEND_S:g} s") from None

    # ---- confirmation ----------------------------------------------------------------------------------------------------------------------------

    async def confirm(self) -> pb.ConfirmResponse:
        """Raises `ClusterUnavailable` if the coordinator does not answer soon: the client then asks another server."""
        self._directory.expect_member()
        try:
            async with asyncio.timeout(CONFIRM_S):
                await self._directory.confirm()
        except TimeoutError:
            raise ClusterUnavailable(address="coordinator", reason=f"no answer within {CONFIRM_S:g} s") from None
        found = self._directory.versions(await self._directory.view(caller()))
        versions = [pb.MapVersion(source=source, version=version) for source, version in sorted(found.items())]
        return pb.ConfirmResponse(epoch=self._directory.epoch, versions=versions)


def _message(part: MapPart) -> pb.MapPart:
    items = [pb.MapItem(name=name, value=value) for name, value in part.items.items()]
    return pb.MapPart(source=part.source, base=part.base, version=part.version, items=items, removed=part.removed)
