"""The rules of access in a coordinator: read, changed by compare-and-set, and followed by the processes that enforce them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from waltz_log.coordination.topics import read_catalogue
from waltz_log.core.ports import Coordinator
from waltz_log.core.topics.catalogue import CATALOGUE, Catalogue
from waltz_log.core.topics.topic_names import TopicName
from waltz_log.errors import InvalidRequest, InvalidSetting
from waltz_log.loggers import get_logger
from waltz_log.security.access import AccessControl, TopicOf
from waltz_log.security.audit_log import acted
from waltz_log.security.rules import ACCESS, CLUSTER_RESOURCE, AccessRules, Resource, Rule

__all__ = ["AccessFollower", "change_rules", "expect_topics", "read_rules", "rule_changes", "topics_of"]

log = get_logger(__name__)


async def read_rules(coordinator: Coordinator) -> AccessRules | None:
    """None: no rule was ever written, or the rules were reset. Raises `InvalidSetting` if they cannot be read."""
    node = await coordinator.get(ACCESS, latest=True)
    return None if node is None else AccessRules.from_bytes(node.data)


async def change_rules(
    coordinator: Coordinator, change: Callable[[AccessRules], AccessRules], *, changed_by: str = "", dry_run: bool = False
) -> AccessRules:
    """The rules after the change. It is computed again if another client was faster. Raises the errors of the change."""
    while True:
        node = await coordinator.get(ACCESS, latest=True)
        found = AccessRules(enforced=False) if node is None else AccessRules.from_bytes(node.data)
        wanted = change(found).model_copy(update={"changed_by": changed_by})
        if dry_run or (wanted.rules, wanted.enforced) == (found.rules, found.enforced):
            return wanted
        if node is None:
            if await coordinator.create(ACCESS, wanted.to_bytes()):
                return wanted
        elif await coordinator.set(ACCESS, wanted.to_bytes(), node.version) is not None:
            return wanted


async def expect_topics(coordinator: Coordinator, rule: Rule) -> bool:
    """Whether the rule covers something that there is now. Raises `NoSuchTopic` for a rule of one topic that does not exist, `InvalidRequest` for
    partitions that the topic does not have."""
    if rule.covers(CLUSTER_RESOURCE) or rule.by_number:
        return True
    catalogue = await read_catalogue(coordinator)
    if rule.topic is None:
        return any(rule.covers(Resource(str(name), -1), some=True) for name in catalogue.topics)
    topic = catalogue.find(TopicName.parse(rule.topic))
    if rule.last_partition is not None and rule.last_partition >= len(topic.partitions):
        raise InvalidRequest(reason=f"{topic.name} has partitions 0 to {len(topic.partitions) - 1}, the rule is for {rule.resource}")
    return True


class AccessFollower:
    """Keeps an `AccessControl` as the coordinator has the rules. `topics`: the topics too; otherwise the control knows them already. Call `read`
    once, then `run`. `changed` is called after each change."""

    def __init__(self, coordinator: Coordinator, control: AccessControl, *, topics: bool, changed: Callable[[], None] = lambda: None) -> None:
        self._coordinator = coordinator
        self._control = control
        self._follows = [ACCESS, CATALOGUE] if topics else [ACCESS]
        self._versions: dict[str, int | None] = {}
        self._changed = changed

    async def read(self, *, latest: bool = False) -> None:
        """`latest`: before the first call is served; afterwards a watch signals changes."""
        nodes = {path: await self._coordinator.get(path, latest=latest) for path in self._follows}
        self._versions = {path: None if node is None else node.version for path, node in nodes.items()}
        topic_of = None
        if CATALOGUE in nodes:
            node = nodes[CATALOGUE]
            topic_of = topics_of(Catalogue() if node is None else Catalogue.from_bytes(node.data))
        node = nodes[ACCESS]
        self._control.replace(self._rules(None if node is None else node.data), topic_of, 0 if node is None else node.changed)
        self._changed()

    def _rules(self, data: bytes | None) -> AccessRules | None:
        """Rules that cannot be read change nothing. A process that has no others permits nothing but to nodes and operators."""
        before = self._control.rules
        try:
            found = None if data is None else AccessRules.from_bytes(data)
        except InvalidSetting as error:
            log.error("rules of access refused, the previous ones stay in use", reason=str(error))
            return before or AccessRules()
        if self._control.version and found is not None and found != before:
            for event, facts in rule_changes(before, found):
                acted(event, **facts)
        return found

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            waits = [asyncio.ensure_future(self._coordinator.wait_changed(path, self._versions[path])) for path in self._follows]
            try:
                done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                for each in done:
                    each.result()
            finally:
                for each in waits:
                    each.cancel()
                await asyncio.gather(*waits, return_exceptions=True)
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
