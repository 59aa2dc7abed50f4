"""`waltz cluster repair`: writes back to the coordinator what its nodes know, where a value is missing, cannot be read or is older."""

from __future__ import annotations

import os
import sys

from waltz_log.cli.printing import print_line, print_result
from waltz_log.coordination.asked_nodes import ask_nodes
from waltz_log.coordination.coordinator import ZooKeeperCoordinator
from waltz_log.coordination.entries import read_entry
from waltz_log.coordination.identity_repair import repair_identities
from waltz_log.coordination.repair import Finding, apply_repair, find_faults
from waltz_log.core.metadata import CLUSTER, ClusterParameters
from waltz_log.exit_codes import FAILED, OK
from waltz_log.outside_text import printable
from waltz_log.security.tickets import KEY_BYTES
from waltz_log.transport.grpc import GrpcNetwork

__all__ = ["run"]


async def run(address: str, *, dry_run: bool, output: str, timeout_s: float) -> int:
    """Ends with `FAILED` if a fault is left."""
    coordinator = await ZooKeeperCoordinator.connect(address, timeout_s=timeout_s, new=True)
    try:
        answers = await ask_nodes(coordinator, GrpcNetwork(), known_values=True)
        for name, answer in answers.items():
            if answer.failed is not None:
                print_line(f"waltz: {name} {answer.failed}", file=sys.stderr)
        found = await find_faults(coordinator, {name: each.known for name, each in answers.items() if each.known is not None})
        faults = []
        for each in found:
            done, line = await _repaired(coordinator, each, dry_run=dry_run)
            faults.append({"path": each.path, "fault": each.fault, "known_by": each.source, "repaired": done and not dry_run, "left": not done})
            if output == "table":
                print_line(line)  # at once: what was written stays written if a later value fails
        identities = await _repaired_identities(coordinator, dry_run=dry_run)
    finally:
        await coordinator.close()
    lines = [f"{'Would repair' if dry_run else 'Repaired'} {printable(each)}" for each in identities]
    if not found and not identities:
        lines = ["nothing to repair"]
    print_result({"dry_run": dry_run, "faults": faults, "identities": identities}, lines, output)
    return FAILED if any(each["left"] for each in faults) else OK


async def _repaired_identities(coordinator: ZooKeeperCoordinator, *, dry_run: bool) -> list[str]:
    """Repairs the values of client ids and outboxes. Without a cluster, or one that cannot be read, there is nothing to compare them with."""
    parameters = await read_entry(coordinator, CLUSTER, ClusterParameters.from_bytes)
    if parameters is None:
        return []
    return await repair_identities(coordinator, GrpcNetwork(), parameters.key.bytes, os.urandom(KEY_BYTES), dry_run=dry_run)


async def _repaired(coordinator: ZooKeeperCoordinator, finding: Finding, *, dry_run: bool) -> tuple[bool, str]:
    """Whether it is repaired, or would be, and a line that says it."""
    if finding.source is None:
        return False, f"Not repaired: {finding.path} {finding.fault}, and no node that answers knows it; {finding.advice}"
    if dry_run:
        return True, f"Would restore {finding.path}: {finding.fault}; known by {finding.source}"
    if not await apply_repair(coordinator, finding):
        return False, f"Not repaired: {finding.path} was changed meanwhile; repeat the command"
    return True, f"Restored {finding.path}: {finding.fault}; from {finding.source}"
