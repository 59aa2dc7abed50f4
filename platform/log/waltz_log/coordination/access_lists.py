"""Access control lists of ZooKeeper: who may read and change each node of a cluster.

Nodes and operators may do everything. Applications and readers may do nothing: they use log servers alone. With TLS, ZooKeeper knows a client
by the subject of its certificate. Without TLS, nodes and operators can share a secret (`WALTZ_ZOOKEEPER_SECRET`). Without either, every process that
reaches ZooKeeper may do everything.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple  # Any: kazoo has no types

from kazoo.security import ACL, OPEN_ACL_UNSAFE, Id, Permissions, make_digest_acl_credential

from waltz_log.errors import InvalidSetting
from waltz_log.loggers import get_logger
from waltz_log.security.certificates import subject_of
from waltz_log.security.settings import TlsSettings

__all__ = ["SECRET", "AccessLists", "access_lists", "open_to_everyone"]

log = get_logger(__name__)

SECRET: Final = "WALTZ_ZOOKEEPER_SECRET"
USER: Final = "waltz"


class AccessLists(NamedTuple):
    """`writers`: as ZooKeeper identifies them; without any, every client may do everything. `secret`: proves that this process is a writer; None: it
    needs no proof, or has none."""

    writers: tuple[Id, ...]
    secret: str | None = None

    def __repr__(self) -> str:
        return f"AccessLists(writers={len(self.writers)})"  # the secret is left out

    def of_nodes(self) -> list[Any]:
        """The list of each node that this process creates."""
        return [ACL(Permissions.ALL, each) for each in self.writers] or list(OPEN_ACL_UNSAFE)

    def of_ensemble(self) -> list[Any]:
        """The list of a node that ZooKeeper itself creates. Every client may read it: the tools of ZooKeeper do."""
        return [*(ACL(Permissions.ALL, each) for each in self.writers), ACL(Permissions.READ, Id("world", "anyone"))]

    def authenticate(self, client: Any) -> None:
        """Adds the secret to a client of kazoo that is not connected yet."""
        if self.secret is not None:
            client.auth_data.add(("digest", f"{USER}:{self.secret}"))


def open_to_everyone(lists: Sequence[Any]) -> bool:
    """Whether a node's list permits everyone more than to read it."""
    return any(each.id.scheme == "world" and each.perms & ~Permissions.READ for each in lists)


def access_lists(tls: TlsSettings | None, environment: Mapping[str, str] = os.environ) -> AccessLists:
    """Raises `InvalidSetting` for a secret that cannot be one."""
    if tls is not None:
        return _by_subject(tls)
    secret = environment.get(SECRET)
    if not secret:
        return AccessLists(())
    if ":" in secret or len(secret) < 16:
        raise InvalidSetting(name=SECRET, reason="must have at least 16 characters and no colon", nearest=None)
    return AccessLists((Id("digest", make_digest_acl_credential(USER, secret)),), secret)


def _by_subject(tls: TlsSettings) -> AccessLists:
    subject = subject_of(tls)
    if subject is not None and subject not in tls.coordinator_writers:
        log.warning(
            "coordinator is not protected",
            subject=subject,
            advice="name the subjects of the nodes' and operators' certificates in tls.coordinator_writers",
        )
        return AccessLists(())
    return AccessLists(tuple(Id("x509", each) for each in tls.coordinator_writers))
