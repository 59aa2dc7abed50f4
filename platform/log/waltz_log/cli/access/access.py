"""`waltz access`: reads and changes the rules of access in the coordinator. Nodes follow them."""

from __future__ import annotations

import getpass
import platform
import sys
from collections.abc import Sequence

from waltz_log.cli.connecting import connected
from waltz_log.cli.printing import print_data, print_line, print_result, print_table
from waltz_log.coordination.access import change_rules, expect_topics, read_rules, replace_rules
from waltz_log.coordination.asked_nodes import ask_nodes, newest_revision, wait_enforced
from waltz_log.core.ports import Coordinator, Network
from waltz_log.errors import InvalidRequest, InvalidSetting
from waltz_log.exit_codes import FAILED, OK, UNAVAILABLE
from waltz_log.security.identity import SPIFFE, Identity, Role
from waltz_log.security.rules import AccessRules, Operation, Rule, decide, parse_operations, parse_resource

__all__ = ["check", "grant", "listing", "reset", "revoke"]


async def grant(address: str, principal: str, operations: str, resources: Sequence[str], *, dry_run: bool, output: str, timeout_s: float) -> int:
    """Raises `InvalidSetting` for a rule that is none, and `NoSuchTopic` for a topic that does not exist, before anything is written."""
    rules = [Rule(principal=principal, operations=parse_operations(operations), resource=each) for each in resources]

    def change(found: AccessRules) -> AccessRules:
        for rule in rules:
            found = found.granted(rule)
        return found

    async with connected(address, timeout_s) as (coordinator, network):
        for rule in rules:
            if not await expect_topics(coordinator, rule):
                print_line(f"waltz: {rule.resource} covers no topic yet; it holds for topics that are created later", file=sys.stderr)
        await _expect_newest(coordinator, network)
        before = await read_rules(coordinator)
        after = await change_rules(coordinator, change, changed_by=_user(), dry_run=dry_run)
        confirmed = dry_run or await _confirmed(coordinator, network, after, timeout_s)
    first = before is None or not before.enforced
    lines = [f"{'Would grant' if dry_run else 'Granted'} {_described(rule)}" for rule in rules]
    if first:
        lines.append(f"{'This would be' if dry_run else 'This is'} the first rule: applications and readers may do only what a rule permits")
    print_result(_change(after, dry_run, confirmed) | {"granted": _rows(rules), "first_rule": first}, lines, output)
    return OK if confirmed else UNAVAILABLE


def _change(after: AccessRules, dry_run: bool, confirmed: bool) -> dict[str, object]:
    """The result of each command that changes rules. `confirmed`: every node enforces them."""
    return {"dry_run": dry_run, "confirmed": confirmed and not dry_run, "revision": after.revision}


def _rows(rules: Sequence[Rule]) -> list[dict[str, object]]:
    return [{"principal": rule.principal, "operations": list(rule.operations), "resource": rule.resource} for rule in rules]


async def revoke(
    address: str, principal: str, operations: str | None, resources: Sequence[str], *, dry_run: bool, output: str, timeout_s: float
) -> int:
    """Raises `InvalidRequest` if no rule is like that."""
    wanted = () if operations is None else parse_operations(operations)
    async with connected(address, timeout_s) as (coordinator, network):
        await _expect_newest(coordinator, network)
        after = await change_rules(coordinator, lambda found: found.revoked(principal, wanted, resources), changed_by=_user(), dry_run=dry_run)
        confirmed = dry_run or await _confirmed(coordinator, network, after, timeout_s)
    what, where = ",".join(wanted) or "all rules", f" on {' '.join(resources)}" if resources else ""
    done = [f"{'Would revoke' if dry_run else 'Revoked'} {what} of {principal}{where}"] if confirmed else []
    revoked = {"principal": principal, "operations": list(wanted) or None, "resources": list(resources) or None}
    print_result(_change(after, dry_run, confirmed) | {"revoked": revoked}, done, output)
    return OK if confirmed else UNAVAILABLE


async def _expect_newest(coordinator: Coordinator, network: Network) -> None:
    """Raises `InvalidRequest` if a node enforces rules that are newer than those of the coordinator: it would not follow a change of these."""
    revision, node = newest_revision(await ask_nodes(coordinator, network))
    found = await read_rules(coordinator)  # after the nodes, so that a change meanwhile is in it
    if revision > (-1 if found is None else found.revision):
        there = "no rules" if found is None else f"revision {found.revision}"
        reason = f"{node} enforces rules of revision {revision} and the coordinator has {there}: it was put back to an earlier state"
        raise InvalidRequest(reason=f"{reason}; `waltz cluster repair` writes back the rules that nodes enforce")


async def _confirmed(coordinator: Coordinator, network: Network, rules: AccessRules, timeout_s: float) -> bool:
    """Whether every node enforces the rules. Names those that do not."""
    lacking = await wait_enforced(coordinator, network, rules, timeout_s)
    for name, why in lacking.items():
        print_line(f"waltz: changed in the coordinator, not confirmed by {name}: {why}", file=sys.stderr)
    return not lacking


async def listing(address: str, *, output: str, timeout_s: float) -> int:
    async with connected(address, timeout_s) as (coordinator, network):
        found = await read_rules(coordinator) or AccessRules(enforced=False)
        if output == "table" and found.revision:
            for name, why in (await wait_enforced(coordinator, network, found, 0)).items():
                print_line(f"waltz: not in force at {name}: {why}", file=sys.stderr)
    if output != "table":
        print_data(found.model_dump(mode="json"), output)
    elif found.enforced:
        print_table(("principal", "operations", "resource"), [(rule.principal, ",".join(rule.operations), rule.resource) for rule in found.rules])
    else:
        print_line("no rules: roles alone decide")
    return OK


async def check(address: str, principal: str, operation: str, resource: str, *, role: str | None, output: str, timeout_s: float) -> int:
    """Ends with `FAILED` if the principal may not do it."""
    asked, where = parse_operations(operation), parse_resource(resource)
    if len(asked) != 1:
        raise InvalidSetting(name="operation", reason=f"must be one operation, got {operation!r}", nearest=None)
    identity = Identity(principal, frozenset({_role(principal, role)}))
    async with connected(address, timeout_s) as (coordinator, _):
        rules = await read_rules(coordinator)
    permitted = decide(rules, identity, asked[0], where)
    reason = _reason(rules, identity, asked[0], permitted, resource)
    line = f"{'permitted' if permitted else 'denied'}: {principal} {asked[0]} {resource}: {reason}: role={', '.join(identity.roles)}"
    fields = {"principal": principal, "operation": asked[0], "resource": resource, "roles": sorted(identity.roles)}
    print_result({"permitted": permitted} | fields | {"reason": reason}, [line], output)
    return OK if permitted else FAILED


def _reason(rules: AccessRules | None, identity: Identity, operation: Operation, permitted: bool, resource: str) -> str:
    if rules is None or not rules.enforced:
        return "there are no rules, so the role decides"
    rule = rules.permitting(identity.principal, operation, parse_resource(resource))
    if not permitted:
        return "no rule permits it" if rule is None else f"a rule permits it, and the role does not: {_described(rule)}"
    return "the role needs no rule" if rule is None or identity.roles & {Role.NODE, Role.OPERATOR} else f"by the rule {_described(rule)}"


def _role(principal: str, given: str | None) -> Role:
    """The role of a principal with the default patterns of the `tls` settings."""
    if given is not None:
        if given not in tuple(Role):
            raise InvalidSetting.unknown(given, [str(each) for each in Role], what="role")
        return Role(given)
    parts = principal.removeprefix(SPIFFE).split("/") if principal.startswith(SPIFFE) else []
    return Role(parts[1]) if len(parts) == 3 and parts[1] in tuple(Role) else Role.APPLICATION


async def reset(address: str, *, confirmed: bool, output: str, timeout_s: float) -> int:
    """Raises `InvalidRequest` if it is not confirmed."""
    if not confirmed:
        raise InvalidRequest(reason="every application could append to and read everything afterwards: repeat with --yes if that is intended")
    async with connected(address, timeout_s) as (coordinator, network):
        answers = await ask_nodes(coordinator, network)
        known = AccessRules(revision=max(0, newest_revision(answers)[0]))
        after = await replace_rules(coordinator, AccessRules(enforced=False, changed_by=_user()), [known])
        done = await _confirmed(coordinator, network, after, timeout_s)
    print_result(_change(after, False, done) | {"removed": "all"}, ["Removed all rules: roles alone decide"] if done else [], output)
    return OK if done else UNAVAILABLE


def _described(rule: Rule) -> str:
    return f"{rule.principal} {','.join(rule.operations)} {rule.resource}"


def _user() -> str:
    """The user of the command, for the audit log of the nodes. They cannot verify it."""
    try:
        return f"{getpass.getuser()}@{platform.node()}"[:256]
    except (OSError, KeyError):
        return platform.node()[:256]
