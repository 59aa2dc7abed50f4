"""`waltz owner`: which log server owns which partition, by an operator's decision."""

from __future__ import annotations

from waltz_log.cli.connecting import connected
from waltz_log.cli.partition_ranges import parse_ranges
from waltz_log.cli.printing import print_data, print_line, print_table
from waltz_log.coordination.placement import PlacementChange, move_owners, release_owners
from waltz_log.exit_codes import OK

__all__ = ["move", "release"]


async def move(address: str, partitions: str, server: str, *, dry_run: bool, output: str, timeout_s: float) -> int:
    wanted = parse_ranges("PARTITIONS", partitions)
    async with connected(address, timeout_s) as (coordinator, _):
        change = await move_owners(coordinator, wanted, server, dry_run=dry_run)
    _show(change, output, dry_run=dry_run)
    return OK


async def release(address: str, partitions: str, *, dry_run: bool, output: str, timeout_s: float) -> int:
    wanted = None if partitions == "all" else parse_ranges("PARTITIONS", partitions)
    async with connected(address, timeout_s) as (coordinator, _):
        change = await release_owners(coordinator, wanted, dry_run=dry_run)
    _show(change, output, dry_run=dry_run)
    return OK


def _show(change: PlacementChange, output: str, *, dry_run: bool) -> None:
    """All moves, also those by which the cluster keeps the servers' shares equal."""
    moves = [{"partition": partition, "from": before, "to": after} for partition, before, after in change.moves]
    moved = {str(partition): address for partition, address in sorted(change.after.moved.items())}
    if output != "table":
        print_data({"dry_run": dry_run, "moves": moves, "moved": moved}, output)
        return
    print_table(("partition", "from server", "to server"), [(each["partition"], each["from"], each["to"]) for each in moves])
    held = f"{len(moved)} stay on the server to which an operator moved them"
    print_line(f"{len(moves)} partitions {'would change' if dry_run else 'change'} their owner; {held}")
