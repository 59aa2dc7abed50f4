"""Access control for reads of a storage node's partitions: the owner of the session that holds a replica, and the principals that the topic names.

An owner proves itself with two values: its session, which must be the newest that the replica has seen, and the token that it gave when it opened
that session. Session numbers are public (the node's status lists them), so a number alone proves nothing. The token is as safe as the network that
carries it, and without TLS a principal is only what a client says (docs/guides/topics.md).

The access rules (`security.access`) come first, and are checked again during a stream. Everything else here is in memory: a node that was just
started knows neither readers nor tokens until the owner opens its session again.
"""

from __future__ import annotations

from hmac import compare_digest
from typing import NamedTuple

from waltz_log.core.topics.access import CLUSTER_PRINCIPAL, expect_allowed
from waltz_log.errors import Fenced, NotAllowed, ProtocolViolation, ReplicaFenced, Unavailable
from waltz_log.security.access import AccessControl
from waltz_log.security.audit_log import denied
from waltz_log.security.callers import caller
from waltz_log.security.identity import Role
from waltz_log.security.rules import Operation

__all__ = ["TOKEN_BYTES_MAX", "OpenedBy", "ReadAccess", "ReadPermit"]

TOKEN_BYTES_MAX = 64
"""Owners send 16 bytes."""


class OpenedBy(NamedTuple):
    """What the owner stated when it opened the session. `readers`: the principals that may read; empty: all. The representation leaves the token
    out."""

    session: int
    token: bytes
    topic: str
    readers: tuple[str, ...]

    def __repr__(self) -> str:
        return f"OpenedBy(session={self.session}, topic={self.topic!r}, readers={self.readers!r})"


class ReadPermit:
    """The permission of one stream to read a partition."""

    def __init__(self, access: ReadAccess, partition: int) -> None:
        self._access = access
        self._partition = partition
        self._version = access.control.version
        access.expect_permitted(partition)

    def renew(self) -> None:
        """Raises `PermissionDenied` if the caller has lost it. Costs a comparison while the rules stay as they are."""
        if self._version != self._access.control.version:
            self._version = self._access.control.version
            self._access.expect_permitted(self._partition)


class ReadAccess:
    """`control`: decides by the rules of access. The topic's own properties come on top."""

    def __init__(self, control: AccessControl) -> None:
        self.control = control
        self._opened: dict[int, OpenedBy] = {}

    def of(self, partition: int) -> OpenedBy | None:
        """None if no owner has opened a session since the node was started."""
        return self._opened.get(partition)

    def expect_same_owner(self, partition: int, session: int, token: bytes, clean_session: int) -> None:
        """Raises `ReplicaFenced` if the session was opened with another token: only its owner may change the readers. `clean_session`: the newest
        session in which the replica was clean; from it the caller of the RPC can conclude whether an owner or another process opened the session
        before."""
        if len(token) > TOKEN_BYTES_MAX:
            raise ProtocolViolation(reason=f"owner token is too long: bytes={len(token)} limit={TOKEN_BYTES_MAX}")
        known = self._opened.get(partition)
        if known is not None and known.session == session and not compare_digest(known.token, token):
            what = "store session, opened by another owner before"
            raise ReplicaFenced(what=what, partition=partition, mine=session, newer=session, clean_session=clean_session)

    def record(self, partition: int, opened: OpenedBy, clean_session: int) -> None:
        """Call after the session was opened. Raises `ReplicaFenced` as `expect_same_owner` does, for a concurrent request."""
        self.expect_same_owner(partition, opened.session, opened.token, clean_session)
        known = self._opened.get(partition)
        if known is None or known.session <= opened.session:
            self._opened[partition] = opened

    def expect_permitted(self, partition: int) -> None:
        """Raises `PermissionDenied` if no rule lets the caller read the partition, whether there is one or not; `Unavailable` if the owner knows
        the partition as one of a topic that the caller may read, and this node has not heard of that yet."""
        known = self._opened.get(partition)
        newer = "" if known is None or known.topic == self.control.topic_of(partition) else known.topic
        if newer and not self.control.permits(Operation.READ, partition) and self.control.permits(Operation.READ, partition, newer):
            raise Unavailable(reason=f"the topics are not known to this server yet: partition={partition}")
        self.control.expect(partition, Operation.READ)

    def reads_all(self, partition: int, principal: str, *, fence: int, token: bytes, newest_session: int) -> bool:
        """Whether the caller may read what is not committed: the owner of the newest session, and the cluster's own processes, whose name only a
        node may state (`security.permits`)."""
        known = self._opened.get(partition)
        is_owner = known is not None and fence == newest_session == known.session and compare_digest(known.token, token)
        return is_owner or principal == CLUSTER_PRINCIPAL

    def expect_reader(self, partition: int, principal: str, *, fence: int, token: bytes, newest_session: int) -> None:
        """Raises `NotAllowed` if the topic names its readers, this principal is none of them, and the caller is not the owner of `newest_session`,
        the newest session that the replica has seen; `Fenced` if such a caller names an older session. Each refusal but that of a node which was
        replaced is in the audit log."""
        known = self._opened.get(partition)
        if known is None:
            return
        if fence == newest_session == known.session and known.token and compare_digest(known.token, token):
            return
        try:
            expect_allowed(known.topic, known.readers, "read", principal)
        except NotAllowed as error:
            replaced = 0 < fence < newest_session  # maybe an owner that has not noticed yet; a client can claim that too
            peer = caller()
            if not (replaced and peer is not None and Role.NODE in peer.roles):
                denied(error, verified=self.control.enforced)
            if replaced:
                raise Fenced(what="store session", partition=partition, mine=fence, newer=newest_session) from None
            raise
