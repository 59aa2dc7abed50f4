"""`waltz storage forget`: removes a storage node from the cluster that will not come back."""

from __future__ import annotations

from waltz_log.cli.connecting import connected
from waltz_log.cli.printing import print_data, print_line
from waltz_log.coordination.placement import forget_storage
from waltz_log.coordination.survey import survey
from waltz_log.errors import InvalidRequest
from waltz_log.exit_codes import OK

__all__ = ["forget"]


async def forget(address: str, name: str, *, dry_run: bool, output: str, timeout_s: float) -> int:
    """Raises `InvalidRequest` for a node that is not known, that answers, or that still has a replica."""
    async with connected(address, timeout_s) as (coordinator, network):
        found = await survey(coordinator, network, address)
        node = next((each for each in found.storages if each.name == name), None)
        if node is None and name not in found.drained:
            known = ", ".join(each.name for each in found.storages) or "none"
            raise InvalidRequest(reason=f"no storage node is named {name}; there are {known}")
        if node is not None and node.answers:
            raise InvalidRequest(reason=f"{name} answers at {node.address}: stop it first, because it would join again")
        forgotten = await forget_storage(coordinator, name, dry_run=dry_run)
    if output != "table":
        print_data({"node": name, "dry_run": dry_run, "forgotten": forgotten and not dry_run}, output)
    else:
        print_line(f"would remove {name}" if dry_run else f"Removed {name}")
    return OK
