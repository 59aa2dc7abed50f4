"""`waltz cluster repair`: writes back to the coordinator what its nodes know, where a value is missing, cannot be read or is older."""

from __future__ import annotations

import os
import sys

from waltz_log.cli.printing import print_line
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


async def run(address: str, *, dry_run: bool, timeout_s: float) -> int:
    """Ends with `FAILED` if a fault is left."""
    coordinator = await ZooKeeperCoordinator.connect(address, timeout_s=timeout_s, new=True)
    try:
        answers = await ask_nodes(coordinator, GrpcNetwork(), known_values=True)
        for name, answer in answers.items():
            if answer.failed is not None:
                print_line(f"waltz: {name} {answer.failed}", file=sys.stderr)
        found = await find_faults(coordinator, {name: each.known for name, each in answers.items() if each.known is not None})
        left = [each for each in found if not await _repaired(coordinator, each, dry_run=dry_run)]
        identities = await _repaired_identities(coordinator, dry_run=dry_run)
    finally:
        await coordinator.close()
    if not found and not identities:
        print_line("nothing to repair")
    return FAILED if left else OK


async def _repaired_identities(coordinator: ZooKeeperCoordinator, *, dry_run: bool) -> list[str]:
    """Of client ids and outboxes. Without a cluster, or one that cannot be read, there is nothing to compare them with."""
    parameters = await read_entry(coordinator, CLUSTER, ClusterParameters.from_bytes)
    if parameters is None:
        return []
    found = await repair_identities(coordinator, GrpcNetwork(), parameters.key.bytes, os.urandom(KEY_BYTES), dry_run=dry_run)
    for each in found:
        print_line(f"{'would be' if dry_run else 'is'} repaired: {printable(each)}")
    return found


async def _repaired(coordinator: ZooKeeperCoordinator, finding: Finding, *, dry_run: bool) -> bool:
    if finding.source is None:
        print_line(f"left: {finding.path} {finding.fault}, and no node that answers knows it; {finding.advice}")
        return False
    if dry_run:
        print_line(f"would be restored: {finding.path} {finding.fault}; known by {finding.source}")
        return True
    if not await apply_repair(coordinator, finding):
        print_line(f"left: {finding.path} was changed meanwhile; repeat the command")
        return False
    print_line(f"restored: {finding.path} {finding.fault}; from {finding.source}")
    return True
