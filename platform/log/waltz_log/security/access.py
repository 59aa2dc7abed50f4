"""Decides whether the caller of a procedure may do what it asks for, by its roles and by the rules of access.

The rules and the topics that a process knows are replaced while it serves (`coordination.access`). Each change raises `version`. A stream compares it
with the version at which it was permitted, and asks again only when they differ. A denial is worded by what the caller named, so that it does not
show whether that exists.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from waltz_log.errors import PermissionDenied, Unavailable
from waltz_log.security.audit_log import denied
from waltz_log.security.callers import caller
from waltz_log.security.identity import Identity, Role, named_principal
from waltz_log.security.rules import CLOSED, CLUSTER_RESOURCE, AccessRules, Operation, Resource, decide, permits_anywhere, resolves_for_others

__all__ = ["NOT_KNOWN", "AccessControl", "TopicOf"]

TopicOf: TypeAlias = Callable[[int], tuple[str, int] | None]
"""From a log partition to the name of its topic and its number in the topic; None if it belongs to no topic."""

Confirm: TypeAlias = Callable[[], Awaitable[None]]

FOLLOW_OPERATION: Final = "follow"
"""The cluster: permitted with any right."""

_OF_TOPIC: Final = (Operation.READ, Operation.APPEND, Operation.RESOLVE, Operation.MANAGE)

NOT_KNOWN: Final = "the rules of access are not known to this server yet"

DECISIONS_MAX: Final = 10_000
"""Decisions that are kept until the next change. One partition of one principal takes one or two."""


class AccessControl:
    """The access control of one process. `enforced` False: the transport does not know its peers, and every call is permitted."""

    def __init__(self, *, enforced: bool) -> None:
        self.enforced = enforced
        self.version = 0
        self.rules: AccessRules | None = None
        """None: no rule was ever written, and roles alone decide."""
        self.rules_changed = 0
        """The number of the coordinator's change that wrote them; 0: there were never any."""
        self.confirm: Confirm | None = None
        """Awaited before the decisions about a request, by a process with few requests: it reads the rules again. None: following them is enough."""
        self._known = False
        self._topic_of: TopicOf = lambda _: None
        self._decisions: dict[tuple[Identity, Operation, Resource, bool], bool] = {}

    def remember(self, rules: AccessRules | None) -> None:
        """What this node enforced before it was restarted, until it has read the rules. None: it never enforced any."""
        self.rules = rules

    def replace(self, rules: AccessRules | None, topic_of: TopicOf | None = None, changed: int = 0) -> None:
        """From now on these rules apply, and partitions belong to these topics. `topic_of` None: to the same as before."""
        self.rules, self._known, self.rules_changed = rules, True, changed
        if topic_of is not None:
            self._topic_of = topic_of
        self.topics_changed()

    @property
    def known(self) -> bool:
        """Whether the process knows which rules apply. Until then applications and readers get `Unavailable`."""
        return self._known

    @property
    def label(self) -> str:
        """Which rules the process enforces: those of `AccessRules.label`, `none`: roles alone decide; `closed`: nothing is permitted, because the
        rules are not known; empty: it enforces nothing."""
        if not self.enforced:
            return ""
        if not self._known or self.rules is CLOSED:
            return "closed"
        return "none" if self.rules is None else self.rules.label

    def name_topics(self, topic_of: TopicOf) -> None:
        """Partitions belong to these topics, which the process follows itself: it calls `topics_changed` when they change."""
        self._topic_of = topic_of

    def topics_changed(self) -> None:
        """What was decided may be different now."""
        self._decisions.clear()
        self.version += 1

    def expect_cluster(self, operation: Operation = Operation.ADMINISTER) -> None:
        """Raises `PermissionDenied` if the caller may not do that with the whole cluster."""
        if self.enforced:
            self._expect(caller(), (operation,), CLUSTER_RESOURCE, str(CLUSTER_RESOURCE))

    def expect_trusted(self, what: str) -> None:
        """Raises `PermissionDenied` if the caller is neither a node nor an operator, whatever the rules permit."""
        if self.enforced and not _needs_no_rule(caller()):
            found = caller()
            error = PermissionDenied(principal=None if found is None else found.principal, operation=what, resource=str(CLUSTER_RESOURCE))
            denied(error)
            raise error

    def expect(self, partition: int, *operations: Operation, topic: str = "", peer: Identity | None = None) -> None:
        """Raises `PermissionDenied` if the peer, by default the caller, may do none of the operations with the log partition; `Unavailable` while
        this process does not know the rules yet. `topic`: the one that the caller named, if it named one."""
        if not self.enforced:
            return
        peer = peer or caller()
        found = self._topic_of(partition)
        if topic and (found is None or found[0] != topic):
            # Whether it is the topic's partition is not for this to say: a caller with a right to some of the topic learns it elsewhere.
            self._expect(peer, operations, Resource(topic, -1), topic, some=True)
            return
        resource = Resource("", partition) if found is None else Resource(*found)
        if not topic:
            named = f"log:{partition}"
        elif self._permits(peer, operations, Resource(topic, -1), some=True):
            named = str(resource)
        else:
            named = topic
        self._expect(peer, operations, resource, named)

    def permits(self, operation: Operation, partition: int, topic: str = "") -> bool:
        """Whether the caller may do it with the partition, or with any of the topic. Unlike `expect`, it records nothing."""
        if not self.enforced:
            return True
        found = (topic, -1) if topic else self._topic_of(partition)
        return self._permits(caller(), (operation,), Resource("", partition) if found is None else Resource(*found), some=bool(topic))

    def expect_member(self) -> None:
        """Raises `PermissionDenied` if the caller may do nothing anywhere in the cluster, so that it learns nothing of it."""
        peer = caller()
        if not self.enforced or self.sees_everything(peer):
            return
        if not self._known:
            raise Unavailable(reason=NOT_KNOWN)
        if peer is None or self.rules is None or not self.rules.names(peer):
            error = PermissionDenied(principal=named_principal(peer), operation=FOLLOW_OPERATION, resource=str(CLUSTER_RESOURCE))
            denied(error)
            raise error

    def sees_everything(self, peer: Identity | None) -> bool:
        """Whether the peer sees all topics: nodes and operators do, and every peer while roles alone decide."""
        if not self.enforced or _needs_no_rule(peer):
            return True
        return self._known and peer is not None and (self.rules is None or not self.rules.enforced)

    def sees(self, topic: str, peer: Identity | None) -> bool:
        """Whether the peer may do anything with any partition of the topic. Otherwise it does not learn that the topic exists."""
        return self.sees_everything(peer) or self._permits(peer, _OF_TOPIC, Resource(topic, -1), some=True)

    def expect_manage(self, topic: str) -> None:
        """Raises `PermissionDenied` if the caller may not create, change and delete a topic of that name, whether or not there is one."""
        if self.enforced:
            self._expect(caller(), (Operation.MANAGE,), Resource(topic, -1), topic)

    def manages(self, topic: str) -> bool:
        """Whether the caller may do that. Unlike `expect_manage`, it records nothing."""
        return not self.enforced or self._permits(caller(), (Operation.MANAGE,), Resource(topic, -1))

    def expect_anywhere(self, operation: Operation) -> None:
        """Raises `PermissionDenied` if the caller may do it in no part of the cluster; `Unavailable` while this process does not know the rules."""
        if not self.enforced:
            return
        peer = caller()
        if not self._known and not _needs_no_rule(peer):
            raise Unavailable(reason=NOT_KNOWN)
        if peer is None or not permits_anywhere(self.rules, peer, operation):
            error = PermissionDenied(principal=named_principal(peer), operation=str(operation), resource=PermissionDenied.anything)
            denied(error)
            raise error

    def needs_no_rule(self) -> bool:
        """Whether no rule can permit or deny anything to the caller: it is a node or an operator, or nothing is enforced."""
        return not self.enforced or _needs_no_rule(caller())

    def permits_for_others(self, partition: int) -> bool:
        """Whether the caller may resolve outcomes of other principals in the log partition. Records nothing."""
        if not self.enforced:
            return True
        peer, found = caller(), self._topic_of(partition)
        resource = Resource("", partition) if found is None else Resource(*found)
        return peer is not None and (self._known or _needs_no_rule(peer)) and resolves_for_others(self.rules, peer, resource)

    def permits_cluster(self, operation: Operation = Operation.ADMINISTER) -> bool:
        """Whether the caller may do that with the whole cluster. Unlike `expect_cluster`, it records nothing."""
        return not self.enforced or self._permits(caller(), (operation,), CLUSTER_RESOURCE)

    def topic_of(self, partition: int) -> str:
        """The topic that this process knows the partition by; empty: none."""
        found = self._topic_of(partition)
        return "" if found is None else found[0]

    def _expect(self, peer: Identity | None, operations: tuple[Operation, ...], resource: Resource, named: str, *, some: bool = False) -> None:
        if not self._known and not _needs_no_rule(peer):
            raise Unavailable(reason=NOT_KNOWN)
        if not self._permits(peer, operations, resource, some=some):
            principal = named_principal(peer)
            error = PermissionDenied(principal=principal, operation=" or ".join(operations), resource=named)
            denied(error)
            raise error

    def _permits(self, peer: Identity | None, operations: tuple[Operation, ...], resource: Resource, *, some: bool = False) -> bool:
        if peer is None or not (self._known or _needs_no_rule(peer)):
            return False
        return any(self._decide(peer, operation, resource, some=some) for operation in operations)

    def _decide(self, peer: Identity, operation: Operation, resource: Resource, *, some: bool) -> bool:
        key = (peer, operation, resource, some)
        known = self._decisions.get(key)
        if known is None:
            if len(self._decisions) >= DECISIONS_MAX:
                self._decisions.clear()
            known = self._decisions[key] = decide(self.rules, peer, operation, resource, some=some)
        return known


def _needs_no_rule(peer: Identity | None) -> bool:
    return peer is not None and bool(peer.roles & {Role.NODE, Role.OPERATOR})
