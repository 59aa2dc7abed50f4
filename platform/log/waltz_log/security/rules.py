"""The rules of access: which principals may do what, where. Pure.

A rule permits operations on a resource to principals; nothing forbids. The resource is a pattern:

| pattern | covers |
|---|---|
| `*` | the whole cluster |
| `shop/*`, `sh*/*`, `shop/ord*` | the topics of a namespace, and of names that begin so |
| `shop/orders`, `shop/orders:0-3`, `shop/orders:2` | a topic, and some of its partitions |
| `log`, `log:0-7` | log partitions that belong to no topic, by number |

Until a first rule is written, roles alone decide. From then on an application or a reader may do what a rule permits, within its role, even if all
rules are revoked later. Only a reset goes back to roles alone. Nodes and operators need no rules.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple, Self

from pydantic import Field, ValidationError, field_validator

from waltz_log.errors import InvalidRequest, InvalidSetting
from waltz_log.security.identity import Identity, Role, matches
from waltz_log.settings import Settings

__all__ = [
    "ACCESS",
    "CLOSED",
    "CLUSTER_RESOURCE",
    "RULES_MAX",
    "AccessRules",
    "Operation",
    "Resource",
    "Rule",
    "decide",
    "parse_operations",
    "parse_resource",
    "permits_anywhere",
    "resolves_for_others",
]

ACCESS: Final = "/access"
"""Where the coordinator keeps the rules. There since a first rule was written, and never removed."""

RULES_MAX: Final = 2048
"""They are one value of the coordinator, of at most a megabyte."""


class Operation(StrEnum):
    """`append` includes `resolve` for the principal's own client ids, because a client settles its own appends. A rule that names `resolve`
    permits it for the ids of other principals too. `manage` is to create, change and delete topics, `administer` to see the status of nodes; only a
    rule permits either."""

    APPEND = "append"
    READ = "read"
    RESOLVE = "resolve"
    MANAGE = "manage"
    ADMINISTER = "administer"


ROLE_OPERATIONS: Final[Mapping[Role, frozenset[Operation]]] = MappingProxyType(
    {
        Role.NODE: frozenset(Operation),
        Role.OPERATOR: frozenset(Operation),
        Role.APPLICATION: frozenset({Operation.APPEND, Operation.READ, Operation.RESOLVE}),
        Role.READER: frozenset({Operation.READ}),
    }
)
_TRUSTED: Final = frozenset({Role.NODE, Role.OPERATOR})
_OF_ANY_ROLE: Final = frozenset({Operation.MANAGE, Operation.ADMINISTER})
"""What no role but operators and nodes may do, and a rule may permit to any."""

PARTITION_MAX: Final = (1 << 31) - 1

_PRINCIPAL: Final = re.compile(r"[A-Za-z0-9._@:+/*-]{1,256}", re.ASCII)
_RESOURCE: Final = re.compile(
    r"(?:(?P<namespace>[A-Za-z0-9_-]*)(?P<namespaces>\*?)/(?P<topic>[A-Za-z0-9_-]*)(?P<topics>\*?)|log)(?::(?P<first>\d{1,10})(?:-(?P<last>\d{1,10}))?)?",
    re.ASCII,
)
WHOLE: Final = "*"


class Resource(NamedTuple):
    """A partition of a topic; with `topic` "" a log partition of no topic; with `partition` -1 the whole topic. `CLUSTER_RESOURCE`: neither."""

    topic: str
    partition: int

    def __str__(self) -> str:
        if not self.topic:
            return "the cluster" if self.partition < 0 else f"log:{self.partition}"
        return self.topic if self.partition < 0 else f"{self.topic}:{self.partition}"


CLUSTER_RESOURCE: Final = Resource("", -1)


class _Pattern(NamedTuple):
    namespace: str
    namespaces: bool
    topic: str
    topics: bool
    by_number: bool
    first: int
    last: int

    def covers(self, resource: Resource, *, some: bool) -> bool:
        if self.by_number != (not resource.topic) or resource == CLUSTER_RESOURCE:
            return False
        if resource.topic:
            namespace, _, topic = resource.topic.partition("/")
            if not (_fits(self.namespace, self.namespaces, namespace) and _fits(self.topic, self.topics, topic)):
                return False
        if resource.partition < 0:
            return some or (self.first == 0 and self.last == PARTITION_MAX)
        return self.first <= resource.partition <= self.last


def _fits(name: str, prefix: bool, given: str) -> bool:
    return given.startswith(name) if prefix else given == name


@lru_cache(maxsize=RULES_MAX)
def _parsed(text: str) -> _Pattern:
    """Raises `ValueError`."""
    found = _RESOURCE.fullmatch(text)
    if found is None:
        raise ValueError(f"must be *, NAMESPACE/TOPIC or log, with :FIRST-LAST for some partitions and * at the end of a name, got {text!r}")
    by_number = found["topic"] is None
    if not by_number and not ((found["namespace"] or found["namespaces"]) and (found["topic"] or found["topics"])):
        raise ValueError(f"must be a namespace and a topic, got {text!r}")
    first = int(found["first"] or 0)
    last = PARTITION_MAX if found["first"] is None else int(found["last"] or first)
    if not first <= last <= PARTITION_MAX:
        raise ValueError(f"must name partitions FIRST-LAST in this order, got {text!r}")
    return _Pattern(found["namespace"] or "", bool(found["namespaces"]), found["topic"] or "", bool(found["topics"]), by_number, first, last)


class _Stored(Settings):
    """What the coordinator keeps as JSON. No process is configured with it."""


class Rule(_Stored):
    """Permits `operations` on `resource`, a pattern, to the principals that match `principal`. A `*` in `principal` stands for any text without a
    slash."""

    principal: str
    operations: tuple[Operation, ...] = Field(min_length=1)
    resource: str

    @field_validator("principal")
    @classmethod
    def _check_principal(cls, principal: str) -> str:
        if not _PRINCIPAL.fullmatch(principal):
            raise ValueError(f"must be a name from a certificate, such as spiffe://waltz/application/orders, or a pattern with *, got {principal!r}")
        return principal

    @field_validator("operations")
    @classmethod
    def _order_operations(cls, operations: tuple[Operation, ...]) -> tuple[Operation, ...]:
        return tuple(each for each in Operation if each in operations)

    @field_validator("resource")
    @classmethod
    def _check_resource(cls, resource: str) -> str:
        if resource != WHOLE:
            _parsed(resource)
        return resource

    def covers(self, resource: Resource, *, some: bool = False) -> bool:
        """`some`: of a whole topic, whether it covers any of its partitions."""
        return self.resource == WHOLE or _parsed(self.resource).covers(resource, some=some)

    @property
    def topic(self) -> str | None:
        """The one topic that it names; None for a pattern of several, and for log partitions of no topic."""
        if self.resource == WHOLE or (pattern := _parsed(self.resource)).by_number or pattern.namespaces or pattern.topics:
            return None
        return f"{pattern.namespace}/{pattern.topic}"

    @property
    def by_number(self) -> bool:
        """Whether it names log partitions of no topic."""
        return self.resource != WHOLE and _parsed(self.resource).by_number

    @property
    def of_whole_topics(self) -> bool:
        """Whether it names no partitions."""
        return self.resource == WHOLE or ":" not in self.resource

    @property
    def last_partition(self) -> int | None:
        """The last of the partitions that it names; None: it names no partitions."""
        last = PARTITION_MAX if self.resource == WHOLE else _parsed(self.resource).last
        return None if last == PARTITION_MAX else last

    def permits(self, principal: str, operation: Operation, resource: Resource, *, some: bool = False) -> bool:
        named = operation in self.operations or (operation is Operation.RESOLVE and Operation.APPEND in self.operations)
        return named and self.covers(resource, some=some) and matches(principal, self.principal)


class AccessRules(_Stored):
    """What the coordinator keeps. `enforced` False: roles alone decide, as before the first rule. `changed_by`: who made the last change, as they
    stated it. `revision` rises with each change, and never falls: nodes refuse rules of an earlier revision."""

    rules: tuple[Rule, ...] = Field(default=(), max_length=RULES_MAX)
    enforced: bool = True
    revision: int = Field(default=0, ge=0, lt=1 << 53)
    changed_by: str = Field(default="", max_length=256)

    def granted(self, rule: Rule) -> Self:
        """With the rule, joined with the one of the same principal and resource. Raises `InvalidRequest` above `RULES_MAX` rules, for `administer`
        on anything but the whole cluster, and for `manage` on anything but whole topics."""
        if Operation.ADMINISTER in rule.operations and rule.resource != WHOLE:
            raise InvalidRequest(reason=f"administer is for the whole cluster: grant it on {WHOLE!r}, not on {rule.resource}")
        if Operation.MANAGE in rule.operations and (rule.by_number or not rule.of_whole_topics):
            raise InvalidRequest(reason=f"manage is for whole topics: grant it on NAMESPACE/TOPIC, which may end with *, not on {rule.resource}")
        same = [each for each in self.rules if (each.principal, each.resource) == (rule.principal, rule.resource)]
        operations = (*rule.operations, *(each for found in same for each in found.operations))
        kept = [each for each in self.rules if each not in same]
        if len(kept) >= RULES_MAX:
            raise InvalidRequest(reason=f"the cluster has {RULES_MAX} rules, which is the limit: replace some with a pattern")
        joined = Rule(principal=rule.principal, operations=operations, resource=rule.resource)
        return type(self)(rules=tuple(sorted((*kept, joined), key=lambda each: (each.principal, each.resource))))

    def revoked(self, principal: str, operations: Collection[Operation] = (), resources: Collection[str] = ()) -> Self:
        """Without these operations of the rules with exactly this principal and one of these resources; empty: all. Raises `InvalidRequest` if
        no rule is like that."""
        removed = frozenset(operations or Operation)
        kept: list[Rule] = []
        for rule in self.rules:
            if rule.principal != principal or (resources and rule.resource not in resources):
                kept.append(rule)
            elif left := tuple(each for each in rule.operations if each not in removed):
                kept.append(Rule(principal=rule.principal, operations=left, resource=rule.resource))
        changed = type(self)(rules=tuple(kept), enforced=self.enforced)
        if changed.rules == self.rules:
            raise InvalidRequest(reason=f"no rule grants that to {principal}: `waltz access list` shows the rules")
        return changed

    def permitting(self, principal: str, operation: Operation, resource: Resource, *, some: bool = False) -> Rule | None:
        """The first rule that permits it."""
        return next((each for each in self.rules if each.permits(principal, operation, resource, some=some)), None)

    def names(self, identity: Identity) -> bool:
        """Whether a rule permits the peer anything, anywhere, within its roles."""
        within = _OF_ANY_ROLE.union(*(ROLE_OPERATIONS[role] for role in identity.roles))
        return any(within.intersection(each.operations) and matches(identity.principal, each.principal) for each in self.rules)

    @property
    def label(self) -> str:
        """Names these rules: their revision, and a digest of all that they say."""
        return f"{self.revision}-{hashlib.sha256(self.to_bytes()).hexdigest()[:16]}"

    def to_bytes(self) -> bytes:
        return self.model_dump_json().encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Raises `InvalidSetting`."""
        try:
            return cls.model_validate_json(data)
        except (ValidationError, InvalidSetting) as error:
            raise InvalidSetting(name=ACCESS, reason=f"does not hold rules of access: {error}".replace("\n", " "), nearest=None) from None


CLOSED: Final = AccessRules()
"""What a process enforces that cannot know the rules, and must assume that there are some: nothing is permitted to applications and readers."""


def decide(rules: AccessRules | None, identity: Identity, operation: Operation, resource: Resource, *, some: bool = False) -> bool:
    """Whether the peer may do it. `rules` None: none was ever written. `some`: of a whole topic, whether it may do it in any of its partitions."""
    if identity.roles & _TRUSTED:
        return True
    within_role = any(operation in ROLE_OPERATIONS[role] for role in identity.roles)
    if rules is None or not rules.enforced:
        return within_role
    if not within_role and not (operation in _OF_ANY_ROLE and identity.roles):
        return False
    return rules.permitting(identity.principal, operation, resource, some=some) is not None


def permits_anywhere(rules: AccessRules | None, identity: Identity, operation: Operation) -> bool:
    """Whether the peer may do it in some part of the cluster, whichever that is."""
    if identity.roles & _TRUSTED:
        return True
    within_role = any(operation in ROLE_OPERATIONS[role] for role in identity.roles)
    if rules is None or not rules.enforced:
        return within_role
    return within_role and any(operation in each.operations and matches(identity.principal, each.principal) for each in rules.rules)


def resolves_for_others(rules: AccessRules | None, identity: Identity, resource: Resource) -> bool:
    """Whether the peer may resolve outcomes of clients of other principals, and end their connections for that. A rule must name `resolve` itself:
    the right to append covers a principal's own client ids alone."""
    if identity.roles & _TRUSTED:
        return True
    if rules is None or not rules.enforced or not any(Operation.RESOLVE in ROLE_OPERATIONS[role] for role in identity.roles):
        return False
    named = (each for each in rules.rules if Operation.RESOLVE in each.operations)
    return any(each.permits(identity.principal, Operation.RESOLVE, resource) for each in named)


def parse_operations(text: str) -> tuple[Operation, ...]:
    """From `append,read`. Raises `InvalidSetting`."""
    found = []
    for name in text.split(","):
        if name.strip() not in tuple(Operation):
            raise InvalidSetting.unknown(name.strip(), [str(each) for each in Operation], what="operation")
        found.append(Operation(name.strip()))
    return tuple(found)


def parse_resource(text: str) -> Resource:
    """From what a rule could cover exactly: `shop/orders`, `shop/orders:2`, `log:5` or `*`. Raises `InvalidSetting`."""
    if text == WHOLE:
        return CLUSTER_RESOURCE
    try:
        pattern = _parsed(text)
    except ValueError as error:
        raise InvalidSetting(name="resource", reason=str(error), nearest=None) from None
    several = pattern.last not in (pattern.first, PARTITION_MAX) or (pattern.by_number and pattern.last == PARTITION_MAX)
    if pattern.namespaces or pattern.topics or several:
        raise InvalidSetting(name="resource", reason=f"must be one topic or partition, such as shop/orders:2 or log:5, got {text!r}", nearest=None)
    partition = -1 if pattern.last == PARTITION_MAX else pattern.first
    return Resource("" if pattern.by_number else f"{pattern.namespace}/{pattern.topic}", partition)
