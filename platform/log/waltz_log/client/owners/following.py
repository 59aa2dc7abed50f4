"""Keeps a client's map of the cluster current, by following it at one log server after the other (docs/internals/cluster_map.md).

A stream that ends, that is silent, or whose server has been cut off from the coordinator for long is replaced by one at another server. The servers
that the map names come first, then those that the application named, which are resolved again; after a round in which all failed, these come first.
A client returns within `retry_base_s` after its stream has ended. If a server was too busy for it, it pauses longer, so that clients that return
together do not keep the servers busy with connections that they have given up by then.
The map outlives all streams: owners can be reached with it while no server answers. The cluster's key is configured, or pinned with the first answer.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Final

from waltz_log.background_tasks import BackgroundTask
from waltz_log.client.base.retry import Backoff
from waltz_log.client.base.settings import ClientSettings
from waltz_log.client.owners.seeds import Seeds
from waltz_log.core.cluster_address import SERVERS_EXAMPLE
from waltz_log.core.cluster_map import ClusterMap, MapPart
from waltz_log.core.ports import Network, Receiver
from waltz_log.errors import (
    ClusterKeyMismatch,
    ClusterUnavailable,
    ConnectionLost,
    InvalidSetting,
    ProtocolViolation,
    QuotaExceeded,
    Unavailable,
    WaltzError,
)
from waltz_log.loggers import get_logger
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.methods import FOLLOW

__all__ = ["Following", "stated_versions"]

log = get_logger(__name__)

FIRST_ANSWER_S: Final = 2.0
"""One server's time for each message of its first answer, so that one that hangs leaves time for the others. A large answer has several."""

SILENCE_S: Final = 15.0
"""A server says something every 5 s."""

STALE_S: Final = 10.0
STALE_MAX_S: Final = 300.0
"""How old a server's knowledge may get before the client prefers another server. Doubled each time up to the longest, because all may be cut off."""

ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024


class Following:
    """`open` it, then `run` it as long as the client lives. `changed` is called with the sources that changed."""

    def __init__(self, seeds: Seeds, network: Network, settings: ClientSettings, rng: random.Random, changed: Callable[[set[str]], None]) -> None:
        self._seeds = seeds
        self._network = network
        self._settings = settings
        self._rng = rng
        self._changed = changed
        self._failed: dict[str, int] = {}
        """The addresses that failed, and in which order; they are tried last."""
        self._failures = 0
        self._busy_s = 0.0
        """How long to leave the servers alone, as they were in the last round: one was too busy to answer, or asked for a pause."""
        self._last: WaltzError | None = None
        self._seeds_first = True
        self._everything = False
        """The next request states no versions, because a change was lost."""
        self._away = False
        """No server could be followed, which was logged."""
        self._patience_s = STALE_S
        self.map = ClusterMap()
        self.key = b"" if settings.cluster_key is None else settings.cluster_key.bytes
        """For the cluster, as configured, or else as the first answer says; empty until then."""
        self.server: str | None = None
        """The server that is followed now."""
        self.age_s = 0.0
        """How old its knowledge was with its last message."""
        self._task: BackgroundTask | None = None

    async def open(self) -> None:
        """Returns with the first answer, and follows from then on. Raises `ClusterUnavailable` if no server answers in time, and at once what is
        certainly wrong: `InvalidSetting` for the address of a coordinator, `PermissionDenied`, `ClusterKeyMismatch` if every server is of another
        cluster."""
        first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = BackgroundTask("waltz cluster follower", lambda: self._run(first))
        try:
            async with asyncio.timeout(self._settings.connect_timeout_s):
                await asyncio.shield(first)
        except TimeoutError:
            await self.close()
            raise ClusterUnavailable(address=self._seeds.text, reason=self._reason()) from None
        except BaseException:
            await self.close()
            raise

    @property
    def opened(self) -> bool:
        """Whether a server has answered."""
        return self.map.epoch >= 0

    async def close(self) -> None:
        if self._task is not None:
            await self._task.end()
            self._task = None

    def _reason(self) -> str:
        waited = f"no log server answers within {self._settings.connect_timeout_s:g} s"
        return waited if self._last is None else f"{waited}; the last error: {self._last}"

    # ---- one server after the other ----------------------------------------------------------------------------------------------------------------

    async def _run(self, first: asyncio.Future[None]) -> None:
        backoff = Backoff(self._settings.retry_base_s, self._settings.retry_cap_s, self._rng)
        while True:
            try:
                if first.done():
                    await asyncio.sleep(self._rng.random() * self._settings.retry_base_s)  # jitter: a server that ends has many followers
                await self._round(first, backoff)
            except WaltzError as error:
                self._last, self._seeds_first = error, True
                if not first.done() and (final := await self._final(error)) is not None:
                    first.set_exception(final)
                    return
                if not self._away:  # before the first answer, `open` waits for a cluster that starts, and the reason may be a wrong address
                    self._away = True
                    if first.done():
                        log.info("no log server can be followed, retrying", reason=str(error))
                    else:
                        log.warning("no log server answers yet, retrying", reason=str(error))
                await asyncio.sleep(max(backoff.next_s(), self._busy_s))

    async def _final(self, error: WaltzError) -> WaltzError | None:
        """What makes no sense to retry before the first answer."""
        if isinstance(error, ProtocolViolation) and error.reason.startswith("unimplemented"):
            reason = f"is not the address of log servers, another kind of node answers: clients need log servers, {SERVERS_EXAMPLE}"
            return InvalidSetting(name="cluster", reason=reason, nearest=None)
        if not error.retriable:
            return error
        try:
            return await self._seeds.diagnose()
        except WaltzError:
            return None

    async def _round(self, first: asyncio.Future[None], backoff: Backoff) -> None:
        """Follows at the first server that answers, until its stream ends. Raises the last error if none does."""
        last: WaltzError | None = None
        self._busy_s = 0.0
        loop = asyncio.get_running_loop()
        for address in await self._candidates():
            self.server = None
            began_s = loop.time()
            try:
                await self._follow(address, first, backoff)
                return
            except WaltzError as error:
                self._busy_s = max(self._busy_s, self._pause_s(error, loop.time() - began_s if self.server is None else 0.0))
                self._failures += 1
                self._failed[address] = self._failures
                if not isinstance(error, ClusterKeyMismatch):
                    self._last = last = error
                elif last is None:  # it costs its address alone: what others failed with is reported before it
                    self._last = last = ClusterKeyMismatch(where=address)
                if self.server is not None and isinstance(error, ConnectionLost):
                    return  # it was followed until then: the next round begins without a pause
        raise last or ClusterUnavailable(address=self._seeds.text, reason="there is no address")

    def _pause_s(self, error: WaltzError, waited_s: float) -> float:
        """Jitter over a longer time after an attempt that showed that a server is too busy. `waited_s`: for a first answer that did not come."""
        if isinstance(error, QuotaExceeded):
            return error.retry_after_s * (0.5 + self._rng.random())
        return self._rng.random() * self._settings.retry_cap_s if waited_s >= FIRST_ANSWER_S else 0.0

    async def _candidates(self) -> list[str]:
        learned = sorted(self.map.assignment.addresses.values())
        self._rng.shuffle(learned)
        try:
            seeds = sorted(await self._seeds.resolve())
        except ClusterUnavailable:
            if not learned:
                raise
            seeds = []
        self._rng.shuffle(seeds)
        found = list(dict.fromkeys([*seeds, *learned] if self._seeds_first else [*learned, *seeds]))
        self._failed = {address: at for address, at in self._failed.items() if address in found}
        return sorted(found, key=lambda address: self._failed.get(address, 0))

    # ---- one stream --------------------------------------------------------------------------------------------------------------------------------

    async def _follow(self, address: str, first: asyncio.Future[None], backoff: Backoff) -> None:
        """Returns when the server ended the stream in order."""
        versions = [] if self._everything else stated_versions(self.map)
        request = pb.FollowRequest(cluster_key=self.key, epoch=max(0, self.map.epoch), versions=versions)
        channel = self._network.connect(address)
        try:
            stream = channel.read(FOLLOW, request)
            try:
                await self._receive_first(stream, address)
                self.server, self._seeds_first, self._away = address, False, False
                self._failed.pop(address, None)
                backoff.reset()
                if not first.done():
                    first.set_result(None)
                loop = asyncio.get_running_loop()
                leaves_s = loop.time() + self._patience_s
                while await self._receive(stream, address, SILENCE_S):
                    if self.age_s < STALE_S:
                        self._patience_s, leaves_s = STALE_S, loop.time() + STALE_S
                    elif loop.time() >= leaves_s:
                        self._patience_s = min(STALE_MAX_S, 2 * self._patience_s)
                        raise Unavailable(reason=f"the server has not reached the coordinator for {self.age_s:.0f} s")
            finally:
                await stream.cancel()
        finally:
            await channel.close()

    async def _receive_first(self, stream: Receiver[pb.FollowResponse], address: str) -> None:
        if not await self._receive(stream, address, FIRST_ANSWER_S):
            raise ConnectionLost(address=address, reason="the stream ended without an answer")

    async def _receive(self, stream: Receiver[pb.FollowResponse], address: str, timeout_s: float) -> bool:
        """Applies one answer, of one message or several. False: the stream ended in order."""
        parts: list[MapPart] = []
        size = 0
        while True:
            try:
                async with asyncio.timeout(timeout_s):
                    message = await stream.receive()
            except TimeoutError:
                raise ConnectionLost(address=address, reason=f"silent for {timeout_s:g} s") from None
            if message is None:
                return False
            self._check_key(message.cluster_key, address)
            size += message.ByteSize()
            if size > ANSWER_BYTES_MAX:
                raise ProtocolViolation(reason=f"more than {ANSWER_BYTES_MAX} bytes of a map: server={address}")
            parts += map(_part, message.parts)
            if message.more:
                continue
            self._apply(message, parts)
            return True

    def _check_key(self, key: bytes, address: str) -> None:
        """Without a configured key, the first answer of all pins it; with TLS, only a node of the cluster can give it."""
        if self.key:
            ClusterKeyMismatch.expect(self.key, key, address)
        if len(key) != 16:
            raise ProtocolViolation(reason="a map without the key of its cluster")

    def _apply(self, message: pb.FollowResponse, parts: Sequence[MapPart]) -> None:
        """A gap, or what cannot be read, ends the stream. On the next one everything is sent again."""
        self._everything = True
        changed = self.map.apply(message.epoch, parts)
        self._everything = False
        if not self.key:
            self.key = self.map.parameters.key.bytes
        self.age_s = message.age_ms / 1000
        if changed:
            self._changed(changed)


def stated_versions(map: ClusterMap) -> list[pb.MapVersion]:
    """What a follower with this map states that follows again."""
    prints = map.fingerprints()
    return [pb.MapVersion(source=source, version=version, fingerprint=prints[source]) for source, version in sorted(map.versions.items())]


def _part(part: pb.MapPart) -> MapPart:
    return MapPart(part.source, part.base, part.version, {item.name: item.value for item in part.items}, tuple(part.removed))
