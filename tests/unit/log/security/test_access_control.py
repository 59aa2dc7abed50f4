"""What a process permits before it knows the rules, and after it has read them."""

from __future__ import annotations

import pytest

from waltz_log.errors import PermissionDenied, Unavailable
from waltz_log.security.access import AccessControl
from waltz_log.security.callers import calling
from waltz_log.security.identity import Identity, Role
from waltz_log.security.rules import AccessRules, Operation, permits_anywhere

CLIENT = Identity("spiffe://waltz/application/ada", frozenset({Role.APPLICATION}))
NODE = Identity("spiffe://waltz/node/storage-0", frozenset({Role.NODE}))
NO_RULES = AccessRules(enforced=True)


def test_a_client_waits_until_the_rules_are_known_and_a_node_does_not() -> None:
    control = AccessControl(enforced=True)
    with calling(CLIENT), pytest.raises(Unavailable):
        control.expect_cluster(Operation.ADMINISTER)
    with calling(NODE):
        control.expect_cluster(Operation.ADMINISTER)
    control.replace(NO_RULES)
    with calling(CLIENT), pytest.raises(PermissionDenied):
        control.expect_cluster(Operation.ADMINISTER)
    with calling(NODE):
        control.expect_cluster(Operation.ADMINISTER)


def test_what_may_be_done_somewhere_is_not_refused_before_the_rules_are_known() -> None:
    control = AccessControl(enforced=True)
    with calling(CLIENT), pytest.raises(Unavailable):
        control.expect_anywhere(Operation.APPEND)
    with calling(NODE):
        control.expect_anywhere(Operation.APPEND)
    control.replace(NO_RULES)
    with calling(CLIENT), pytest.raises(PermissionDenied):
        control.expect_anywhere(Operation.APPEND)


def test_no_change_of_the_rules_is_known_before_they_are_read() -> None:
    control = AccessControl(enforced=True)
    assert control.rules_changed == 0
    control.replace(NO_RULES, changed=7)
    assert control.rules_changed == 7
    control.replace(None)
    assert control.rules_changed == 0


@pytest.mark.parametrize("rules", [None, NO_RULES])
@pytest.mark.parametrize("operation", Operation)
def test_a_node_may_do_everything_somewhere(operation: Operation, rules: AccessRules | None) -> None:
    assert permits_anywhere(rules, NODE, operation)
