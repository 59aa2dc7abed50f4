"""The rules of access in a coordinator: read, changed by compare-and-set, and followed by the processes that enforce them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, TypeAlias  # Any: values of both kinds, and arguments that are passed on

from waltz_log.background_tasks import run_until_first_ends
from waltz_log.coordination.entries import UNREADABLE, readable
from waltz_log.coordination.followed import RULES, TOPICS, FollowedValue, KnownValues
from waltz_log.coordination.other_nodes import ASK_AGAIN_PAUSE_S, OtherNodes
from waltz_log.coordination.topics import read_catalogue
from waltz_log.core.metadata import CLUSTER, ClusterParameters
from waltz_log.core.ports import Coordinator, Node, Values
from waltz_log.core.topics.catalogue import Catalogue
from waltz_log.core.topics.topic_names import TopicName
from waltz_log.errors import InvalidRequest, InvalidSetting
from waltz_log.security.access import AccessControl, TopicOf
from waltz_log.security.audit_log import acted
from waltz_log.security.rules import ACCESS, CLOSED, CLUSTER_RESOURCE, AccessRules, Operation, Resource, Rule

__all__ = ["AccessFollower", "AccessReader", "change_rules", "expect_topics", "read_rules", "replace_rules", "rule_changes", "topics_of"]

REPAIR: Final = "`waltz cluster repair` writes back the rules that nodes enforce, `waltz access reset --yes` removes all rules"

Remember: TypeAlias = Callable[[FollowedValue[Any], bytes], Awaitable[None]]

REASON_MAX: Final = 400
"""Characters of a reason, from its end, which says what to do."""


async def read_rules(coordinator: Coordinator) -> AccessRules | None:
    """None: no rule was ever written. Raises `InvalidSetting` if they cannot be read or are gone."""
    node = await coordinator.get(ACCESS, latest=True)
    if node is None:
        if await _were_ruled(coordinator):
            raise InvalidSetting(name=ACCESS, reason=f"was removed from the coordinator, {REPAIR}", nearest=None)
        return None
    return _parsed(node.data)


def _parsed(data: bytes) -> AccessRules:
    try:
        return AccessRules.from_bytes(data)
    except InvalidSetting as error:
        raise InvalidSetting(name=ACCESS, reason=f"{error.reason}; {REPAIR}"[-REASON_MAX:], nearest=None) from None


async def _were_ruled(coordinator: Values) -> bool:
    """Whether rules were written once. Parameters that cannot be read prove nothing, so the answer is the one that permits less."""
    node = await coordinator.get(CLUSTER, latest=True)
    try:
        return node is not None and ClusterParameters.from_bytes(node.data).ruled
    except UNREADABLE:
        return True


async def change_rules(
    coordinator: Coordinator,
    change: Callable[[AccessRules], AccessRules],
    *,
    changed_by: str = "",
    dry_run: bool = False,
) -> AccessRules:
    """The rules after the change. It is computed again if another client was faster. Raises the errors of the change, and `InvalidSetting` for rules
    that cannot be read or are gone."""
    while True:
        found = await read_rules(coordinator)
        node = await coordinator.get(ACCESS)
        if node is not None:
            found = _parsed(node.data)
        before = AccessRules(enforced=False) if found is None else found
        wanted = change(before).model_copy(update={"changed_by": changed_by, "revision": before.revision + 1})
        if dry_run:
            return wanted
        if (wanted.rules, wanted.enforced) == (before.rules, before.enforced):
            return before
        if await _written(coordinator, wanted, node):
            return wanted


async def replace_rules(coordinator: Coordinator, wanted: AccessRules, known: Collection[AccessRules]) -> AccessRules:
    """Writes rules whatever is there, also where that cannot be read. They get a revision above those in the coordinator and those of `known`, which
    nodes enforce, so that every node follows."""
    while True:
        node = await coordinator.get(ACCESS, latest=True)
        highest = max((each.revision for each in known), default=0)
        if node is not None:
            with suppress(InvalidSetting):  # what cannot be read has no revision
                highest = max(highest, AccessRules.from_bytes(node.data).revision)
        given = wanted.model_copy(update={"revision": highest + 1})
        if await _written(coordinator, given, node):
            return given


async def _written(coordinator: Coordinator, wanted: AccessRules, node: Node | None) -> bool:
    """False if another client was faster. After the first rules, the cluster's parameters say that there were some."""
    if node is None:
        done = await coordinator.create(ACCESS, wanted.to_bytes())
    else:
        done = await coordinator.set(ACCESS, wanted.to_bytes(), node.version) is not None
    while done:
        there = await coordinator.get(CLUSTER, latest=True)
        if there is None:
            return done
        found = readable(CLUSTER, there, ClusterParameters.from_bytes)
        if found is None:
            return done  # a fault of its own, which closes everything where the rules are missing too
        if found.ruled or await coordinator.set(CLUSTER, replace(found, ruled=True).to_bytes(), there.version) is not None:
            return done
    return done


async def expect_topics(coordinator: Coordinator, rule: Rule) -> bool:
    """Whether the rule covers something that there is now. Raises `NoSuchTopic` for a rule of one topic that does not exist, `InvalidRequest` for
    partitions that the topic does not have. A topic that may be managed may be created later."""
    if rule.covers(CLUSTER_RESOURCE) or rule.by_number or Operation.MANAGE in rule.operations:
        return True
    catalogue = await read_catalogue(coordinator)
    if rule.topic is None:
        return any(rule.covers(Resource(str(name), -1), some=True) for name in catalogue.topics)
    topic = catalogue.find(TopicName.parse(rule.topic))
    if rule.last_partition is not None and rule.last_partition >= len(topic.partitions):
        raise InvalidRequest(reason=f"{topic.name} has partitions 0 to {len(topic.partitions) - 1}, the rule is for {rule.resource}")
    return True


class AccessReader:
    """Sets an `AccessControl` to the rules as the coordinator has them. `topics`: the topics too; otherwise the control knows them already. `changed`
    is called after each read.

    Rules that are missing, cannot be read or are older than those that the control enforces change nothing. A control that knows none enforces
    `CLOSED` then: that nothing is permitted. `known`: what the process knows of the values of the coordinator; it may outlive the reader.
    `others`: what other nodes know is asked for first, and a control without rules decides nothing until a majority has answered; None: the
    coordinator alone is believed. `remember`: awaited with each value that decides, before it does."""

    def __init__(
        self,
        values: Values,
        control: AccessControl,
        *,
        topics: bool,
        changed: Callable[[], None] = lambda: None,
        known: KnownValues | None = None,
        others: OtherNodes | None = None,
        remember: Remember | None = None,
    ) -> None:
        self._values = values
        self._control = control
        self._follows: tuple[FollowedValue[Any], ...] = (RULES, TOPICS) if topics else (RULES,)
        self.versions: dict[str, int | None] = {}
        self._changed = changed
        self._known = known or KnownValues()
        self._known.coordinator = values
        self.others = others
        self._remember = remember
        self._remembered: dict[str, bytes] = {}
        self._reading = asyncio.Lock()
        if control.rules is not None and control.rules is not CLOSED:
            self._known.learn(RULES, control.rules.to_bytes())
        elif control.rules is CLOSED:
            self._known.expect_later(RULES)

    async def read(self, *, latest: bool = False) -> None:
        """`latest`: before the first call is served; afterwards a watch signals changes. Calls at the same time run one after the other, so that no
        earlier value follows a later one."""
        async with self._reading:
            await self._read(latest)

    async def _read(self, latest: bool) -> None:
        if self.others is not None and not self.others.answered:
            await self.others.ask(self._values)
        nodes = {each: await self._known.get(self._values, each, latest=latest) for each in self._follows}
        ruled = nodes[RULES] is None and await _were_ruled(self._values)
        self.versions = {each.path: None if node is None else node.version for each, node in nodes.items()}
        topic_of = None
        if TOPICS in nodes:
            topics = self._known.accept(TOPICS, nodes[TOPICS])
            topic_of = topics_of(Catalogue() if topics is None else topics)
        found = self._known.accept(RULES, nodes[RULES], expected=ruled)
        await self._remember_known()
        if self._undecided:
            return
        refused, node = self._known.refused(), nodes[RULES]
        if any(each in refused and not self._known.knows(each) for each in (RULES.path, TOPICS.path)):
            found = CLOSED
        self._record(found)
        self._control.replace(found, topic_of, node.changed if node is not None and RULES.path not in refused else self._control.rules_changed)
        self._changed()

    @property
    def _undecided(self) -> bool:
        return self.others is not None and not self.others.answered and self._control.rules is None and not self._control.known

    async def _remember_known(self) -> None:
        if self._remember is None:
            return
        for kind in self._follows:
            data = self._known.data(kind)
            if data is not None and data != self._remembered.get(kind.path):
                await self._remember(kind, data)
                self._remembered[kind.path] = data

    def _record(self, found: AccessRules | None) -> None:
        """In the audit log, what changed since the rules before."""
        before = self._control.rules
        if found is not None and found is not CLOSED and found != before and self._control.version:
            for event, facts in rule_changes(None if before is CLOSED else before, found):
                acted(event, **facts)


class AccessFollower:
    """Keeps an `AccessControl` as the coordinator has the rules; `about`: as for `AccessReader`. Call `read` once, then `run`."""

    def __init__(self, coordinator: Coordinator, control: AccessControl, **about: Any) -> None:
        self._coordinator = coordinator
        self._reader = AccessReader(coordinator, control, **about)
        self.read = self._reader.read

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            others = self._reader.others
            pause_s = ASK_AGAIN_PAUSE_S if others is not None and not others.answered else None
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await run_until_first_ends(*(self._coordinator.wait_changed(path, version) for path, version in self._reader.versions.items()))
            await self.read()


def topics_of(catalogue: Catalogue) -> TopicOf:
    found = {each: (str(topic.name), at) for topic in catalogue.topics.values() for at, each in enumerate(topic.partitions)}
    return found.get


def rule_changes(before: AccessRules | None, after: AccessRules) -> Iterator[tuple[str, dict[str, str | None]]]:
    """What the audit log says of the change: events with their facts. None: there were no rules."""
    before = before or AccessRules(enforced=False)
    by = after.changed_by or None
    for event, one, other in (("access granted", after, before), ("access revoked", before, after)):
        for rule in one.rules:
            there = {
                operation
                for each in other.rules
                if (each.principal, each.resource) == (rule.principal, rule.resource)
                for operation in each.operations
            }
            if operations := ",".join(each for each in rule.operations if each not in there):
                yield event, {"principal": rule.principal, "operations": operations, "resource": rule.resource, "stated_by": by}
    if before.enforced != after.enforced:
        yield "access rules enforced" if after.enforced else "access rules reset", {"stated_by": by}
