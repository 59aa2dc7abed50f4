"""The rules of access: what a pattern covers, what changes them, and what they decide, compared with the simplest correct decision."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz_log.errors import InvalidRequest, InvalidSetting
from waltz_log.security.identity import Identity, Role
from waltz_log.security.rules import (
    CLUSTER_RESOURCE,
    RULES_MAX,
    AccessRules,
    Operation,
    Resource,
    Rule,
    decide,
    parse_operations,
    parse_resource,
)

ORDERS = "spiffe://waltz/application/orders"
APPLICATION = Identity(ORDERS, frozenset({Role.APPLICATION}))
READER = Identity("spiffe://waltz/reader/reports", frozenset({Role.READER}))


def _rule(resource: str, *operations: str, principal: str = ORDERS) -> Rule:
    return Rule(principal=principal, operations=tuple(map(Operation, operations or ("read",))), resource=resource)


@pytest.mark.parametrize(
    ("pattern", "covered", "others"),
    [
        ("*", ["shop/orders", "shop/orders:3", "log:7", "*"], []),
        ("shop/*", ["shop/orders", "shop/orders:3", "shop/o"], ["shops/orders", "log:0", "*"]),
        ("sh*/*", ["shop/orders", "ship/x:1"], ["bank/x", "log:0"]),
        ("shop/ord*", ["shop/orders", "shop/order:9"], ["shop/bills", "shop/or"]),
        ("shop/orders", ["shop/orders", "shop/orders:0"], ["shop/orders2", "shop/order", "log:0"]),
        ("shop/orders:1-2", ["shop/orders:1", "shop/orders:2"], ["shop/orders", "shop/orders:0", "shop/orders:3", "log:1"]),
        ("shop/orders:2", ["shop/orders:2"], ["shop/orders:1", "shop/orders"]),
        ("log", ["log:0", "log:4095"], ["shop/orders", "*"]),
        ("log:3-4", ["log:3", "log:4"], ["log:2", "log:5", "shop/orders:3"]),
        ("log*/x", ["logs/x", "log/x"], ["log:1", "log/y"]),
    ],
)
def test_a_pattern_covers_these_resources_and_no_others(pattern: str, covered: list[str], others: list[str]) -> None:
    rule = _rule(pattern)
    assert [each for each in covered if not rule.covers(parse_resource(each))] == []
    assert [each for each in others if rule.covers(parse_resource(each))] == []


@pytest.mark.parametrize(
    "text", ["", "shop", "shop/", "/orders", "shop/orders:", "shop/orders:3-1", "sh*op/x", "shop/or*s", "log:x", "a/b/c", "shop/orders:99999999999"]
)
def test_a_resource_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidSetting, match="resource"):
        _rule(text)


@pytest.mark.parametrize("principal", ["", "a b", "spiffe://waltz/ä", "x" * 257])
def test_a_principal_that_no_certificate_has_is_refused(principal: str) -> None:
    with pytest.raises(InvalidSetting, match="principal"):
        _rule("*", principal=principal)


def test_only_one_resource_can_be_tested_at_once() -> None:
    assert parse_resource("shop/orders:2") == Resource("shop/orders", 2)
    for several in ("shop/*", "shop/orders:1-2", "log", "nothing"):
        with pytest.raises(InvalidSetting):
            parse_resource(several)


def test_an_unknown_operation_names_the_nearest() -> None:
    assert parse_operations("append, read") == (Operation.APPEND, Operation.READ)
    with pytest.raises(InvalidSetting, match="did you mean append"):
        parse_operations("apend")


def test_roles_alone_decide_until_the_first_rule_and_after_a_reset() -> None:
    anywhere = Resource("shop/orders", 0)
    for rules in (None, AccessRules(enforced=False)):
        assert decide(rules, APPLICATION, Operation.APPEND, anywhere)
        assert decide(rules, READER, Operation.READ, anywhere)
        assert not decide(rules, READER, Operation.APPEND, anywhere)
        assert not decide(rules, APPLICATION, Operation.ADMINISTER, CLUSTER_RESOURCE)


def test_the_first_rule_denies_everything_else_and_so_do_no_rules_after_it() -> None:
    rules = AccessRules(enforced=False).granted(_rule("shop/orders", "append"))
    assert rules.enforced
    assert decide(rules, APPLICATION, Operation.APPEND, Resource("shop/orders", 0))
    assert not decide(rules, APPLICATION, Operation.READ, Resource("shop/orders", 0))
    assert not decide(rules, READER, Operation.READ, Resource("shop/orders", 0))
    none_left = rules.revoked(ORDERS)
    assert none_left.rules == ()
    assert not decide(none_left, APPLICATION, Operation.APPEND, Resource("shop/orders", 0))


def test_a_rule_does_not_reach_beyond_the_role() -> None:
    rules = AccessRules().granted(_rule("*", *Operation, principal="spiffe://waltz/*/*"))
    assert not decide(rules, READER, Operation.APPEND, Resource("shop/orders", 0))
    assert decide(rules, READER, Operation.ADMINISTER, CLUSTER_RESOURCE)
    assert not decide(rules, Identity(ORDERS, frozenset()), Operation.ADMINISTER, CLUSTER_RESOURCE)


def test_nodes_and_operators_need_no_rule() -> None:
    for role in (Role.NODE, Role.OPERATOR):
        for operation in Operation:
            assert decide(AccessRules(), Identity("x", frozenset({role})), operation, Resource("shop/orders", 0))


def test_who_may_append_may_settle_its_appends() -> None:
    rules = AccessRules().granted(_rule("shop/orders", "append"))
    assert decide(rules, APPLICATION, Operation.RESOLVE, Resource("shop/orders", 0))


def test_some_of_a_topic_is_asked_for_by_itself() -> None:
    rules = AccessRules().granted(_rule("shop/orders:1-2"))
    assert not decide(rules, APPLICATION, Operation.READ, Resource("shop/orders", -1))
    assert decide(rules, APPLICATION, Operation.READ, Resource("shop/orders", -1), some=True)
    assert not decide(rules, APPLICATION, Operation.READ, Resource("shop/bills", -1), some=True)


def test_rules_of_one_principal_and_resource_are_joined_and_divided() -> None:
    rules = AccessRules().granted(_rule("shop/orders", "read")).granted(_rule("shop/orders", "append"))
    assert rules.rules == (_rule("shop/orders", "append", "read"),)
    assert rules.revoked(ORDERS, [Operation.APPEND]).rules == (_rule("shop/orders", "read"),)
    unknowns: tuple[dict[str, Any], ...] = ({"principal": "spiffe://waltz/application/other"}, {"principal": ORDERS, "resources": ["shop/bills"]})
    for unknown in unknowns:
        with pytest.raises(InvalidRequest, match="no rule grants that"):
            rules.revoked(**unknown)


def test_administer_is_granted_on_the_whole_cluster_alone() -> None:
    with pytest.raises(InvalidRequest, match="administer is for the whole cluster"):
        AccessRules().granted(_rule("shop/*", "administer"))


def test_the_number_of_rules_is_bounded() -> None:
    rules = AccessRules(rules=tuple(_rule(f"log:{number}") for number in range(RULES_MAX)))
    rules.granted(_rule("log:0", "append"))
    with pytest.raises(InvalidRequest, match=f"{RULES_MAX} rules"):
        rules.granted(_rule(f"log:{RULES_MAX}"))


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"rules": [{}]}', b'{"rules": [], "more": 1}', b"\xff"])
def test_rules_that_cannot_be_read_are_refused_with_their_place(data: bytes) -> None:
    with pytest.raises(InvalidSetting, match="/access"):
        AccessRules.from_bytes(data)


NAMES = st.sampled_from(["a", "ab", "abc", "b"])
PATTERNS = st.one_of(
    st.just("*"),
    st.just("log"),
    st.builds("log:{}-{}".format, st.integers(0, 2), st.integers(2, 4)),
    st.builds("{}{}/{}{}".format, NAMES, st.sampled_from(["", "*"]), NAMES, st.sampled_from(["", "*"])),
    st.builds("{}/{}:{}-{}".format, NAMES, NAMES, st.integers(0, 2), st.integers(2, 4)),
)
RULES = st.builds(
    lambda principal, operations, resource: Rule(principal=principal, operations=tuple(operations), resource=resource),
    st.sampled_from(["p", "q", "*", "p/*"]),
    st.sets(st.sampled_from([Operation.APPEND, Operation.READ, Operation.RESOLVE]), min_size=1),
    PATTERNS,
)
RESOURCES = st.one_of(
    st.builds(lambda n, t, p: Resource(f"{n}/{t}", p), NAMES, NAMES, st.integers(0, 5)), st.builds(Resource, st.just(""), st.integers(0, 5))
)


def _plainly(rule: Rule, principal: str, operation: Operation, resource: Resource) -> bool:
    """The same by text alone."""
    if not re.fullmatch(rule.principal.replace("*", "[^/]+"), principal):
        return False
    if operation not in rule.operations and not (operation == Operation.RESOLVE and Operation.APPEND in rule.operations):
        return False
    if rule.resource == "*":
        return True
    name, _, span = rule.resource.partition(":")
    first, _, last = span.partition("-")
    if span and not int(first) <= resource.partition <= int(last):
        return False
    return re.fullmatch(name.replace("*", ".*"), resource.topic or "log") is not None


def test_every_pattern_of_names_covers_what_its_text_says() -> None:
    """All of them: a namespace and a topic, each with and without a star."""
    names = ["a", "ab", "abc", "b"]
    patterns = [f"{namespace}{star}/{topic}{end}" for namespace in names for star in ("", "*") for topic in names for end in ("", "*")]
    for pattern in patterns:
        rule = _rule(pattern)
        for resource in (Resource(f"{namespace}/{topic}", 0) for namespace in names for topic in names):
            assert rule.covers(resource) == _plainly(rule, ORDERS, Operation.READ, resource), (pattern, resource)


@given(
    st.lists(RULES, max_size=5),
    st.sampled_from(["p", "q", "p/x", "p/x/y"]),
    st.sampled_from([Operation.APPEND, Operation.READ, Operation.RESOLVE]),
    RESOURCES,
)
def test_the_decision_is_that_of_the_simplest_reading(rules: list[Rule], principal: str, operation: Operation, resource: Resource) -> None:
    decided = decide(AccessRules(rules=tuple(rules)), Identity(principal, frozenset({Role.APPLICATION})), operation, resource)
    assert decided == any(_plainly(rule, principal, operation, resource) for rule in rules)


@given(st.lists(RULES, max_size=6), RULES)
def test_a_grant_adds_what_it_says_and_its_revocation_leaves_no_rule_like_it(rules: list[Rule], rule: Rule) -> None:
    before = AccessRules()
    for each in rules:
        before = before.granted(each)
    granted = before.granted(rule)
    found = next(each for each in granted.rules if (each.principal, each.resource) == (rule.principal, rule.resource))
    assert set(rule.operations) <= set(found.operations)
    revoked = granted.revoked(rule.principal, resources=[rule.resource])
    assert all((each.principal, each.resource) != (rule.principal, rule.resource) for each in revoked.rules)
    assert AccessRules.from_bytes(granted.to_bytes()) == granted
