"""The store session as each of its replica sessions sees it: what they read of it, and what they report to it.

`StoreSession` is the only one that the product has. The protocol names all that a replica session may use, so that neither module imports the other.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from waltz_log.core.fill_pace import FillPace
from waltz_log.core.flushing import Flushing
from waltz_log.core.formats.block import Block
from waltz_log.core.metadata import ClusterParameters
from waltz_log.core.ports import Coordinator, Network
from waltz_log.core.status.latency import Latency
from waltz_log.errors import WaltzError
from waltz_log.server.base.node_probes import NodeProbes
from waltz_log.server.base.pulse import Pulse
from waltz_log.server.base.settings import ServerSettings
from waltz_log.server.base.topics import ServedTopics
from waltz_log.server.replication.announcement import Announcement
from waltz_log.server.replication.block_stream import Encodings
from waltz_log.server.replication.block_window import BlockWindow
from waltz_log.server.replication.fence_evidence import FenceEvidence
from waltz_log.server.replication.session_recovery import Recovery

__all__ = ["BlockSource", "OwnerSession"]


class BlockSource(Protocol):
    """A replica from which another one is copied."""

    def runs(
        self, first: int, last: int, *, headers_only: bool = False, recovering: bool = False, runs_max: int = 0
    ) -> AsyncGenerator[list[Block], None]: ...


class OwnerSession(Protocol):
    # ---- what stays the same while the partition has this owner

    partition: int
    cluster: ClusterParameters
    coordinator: Coordinator
    network: Network
    settings: ServerSettings
    topics: ServedTopics
    probes: NodeProbes
    fill_pace: FillPace
    encodings: Encodings
    announcement: Announcement
    replicate_latency: Latency

    # ---- the session

    session: int
    assigned: tuple[str, ...]
    failed: WaltzError | None
    """What ended it."""
    first_transaction_id: int
    """The first id that is kept. A replica that begins later raises it."""
    resolved: int
    committed: int
    wanted: int
    """An application waits for the ids up to here to be on disk."""
    evidence: FenceEvidence
    """A replica session writes its own entry of `made_clean`."""
    appended: Pulse
    """A block was appended, or what replicas are to be informed of changed."""
    advanced: Pulse
    """The committed mark rose, a replica's state changed, or the session ended."""

    @property
    def owner_token(self) -> bytes: ...
    @property
    def window(self) -> BlockWindow: ...
    @property
    def flushing(self) -> Flushing | None: ...
    @property
    def open_for_appends(self) -> bool: ...
    @property
    def live(self) -> frozenset[str]: ...

    # ---- other replicas

    @property
    def strained(self) -> frozenset[str]:
        """The replicas that were late lately, and are read last."""
        ...

    def source(self, name: str) -> BlockSource: ...
    def follows(self, reads: BlockSource) -> bool:
        """Whether they are the reads of a replica that this session has now."""
        ...

    def runs(self, first: int, last: int) -> AsyncGenerator[list[Block], None]:
        """Committed blocks, from any replica of this session."""
        ...

    # ---- what a replica session reports

    async def decide(self, recovery: Recovery) -> None: ...
    def resolved_at(self, high_water_mark: int) -> None: ...
    async def opened_with(self, name: str, recovery: Recovery) -> None: ...
    async def became_clean(self, name: str, recovery: Recovery, last_transaction_id: int) -> None: ...
    def forget(self, name: str, recovery: Recovery) -> None: ...
    def acknowledge(self, name: str, last_transaction_id: int) -> None: ...
    def receive(self, name: str, transaction_id: int) -> None: ...
