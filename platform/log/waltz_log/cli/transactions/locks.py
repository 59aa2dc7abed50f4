"""`waltz lock list`: what the owners of partitions report of their lock tables: how many locks they remember, and which ones had conflicts.

A lock table keeps the hash of a lock and the last transaction that wrote it. Owners report the locks with most conflicts and the last conflicts, each
with the transaction that won. A lock without a conflict is not reported. The log servers answer operators alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any  # JSON values

from waltz_log.cli.connecting import reached
from waltz_log.cli.lock_tables import lock_tables
from waltz_log.cli.partition_ranges import format_ranges, parse_ranges
from waltz_log.cli.printing import print_data, print_line, print_table
from waltz_log.cli.watching import watched
from waltz_log.client.transactions.transaction import Lock, lock_hash
from waltz_log.core.status.server_statistics import LockTableStatistics
from waltz_log.errors import Unavailable
from waltz_log.exit_codes import OK

__all__ = ["described", "listing"]


async def listing(address: str, partitions: str | None, locks: Sequence[Lock], *, output: str, every_s: float | None, timeout_s: float) -> int:
    """`locks`: show these alone. Raises `PermissionDenied`, and `Unavailable` if the owner of a wanted partition does not answer."""
    wanted = None if partitions is None else parse_ranges("--partition", partitions)
    names = {lock_hash(lock).hex(): f"{lock.name}:{lock.key}" for lock in locks}
    async with reached(address, timeout_s) as owners:

        async def once() -> int:
            chosen = range(owners.parameters.partitions) if wanted is None else wanted
            await owners.bound(min(chosen), timeout_s)  # returns when an owner is known, which is later than the first map in a young cluster
            tables = await lock_tables(owners, timeout_s)
            facts = [described(each, tables[each], names) for each in chosen if each in tables]
            _show(facts, names, output)
            silent = sorted(set(chosen) - tables.keys())
            if silent:
                raise Unavailable(reason=f"no owner of these partitions answers: {format_ranges(silent)}")
            return OK

        return await watched(once, every_s=every_s, output=output)


def described(partition: int, table: LockTableStatistics, names: dict[str, str]) -> dict[str, Any]:
    """The locks with conflicts, those with most first; with `names`, by hash, only these, also one without a conflict. `conflicts`: None if they are
    not among the most frequent ones. `last_writer`: that won the last conflict; `exact`: False if the table had forgotten the lock, so that it is
    only a bound."""
    counts = {hot.lock: hot.conflicts for hot in table.hottest}
    last = {each.lock: each for each in table.recent}  # the newest of each lock, which comes last
    rows = []
    for lock in names or dict.fromkeys([*counts, *reversed(last)]):
        won = last.get(lock)
        rows.append(
            {
                "lock": lock,
                "name": names.get(lock),
                "conflicts": counts.get(lock),
                "last_writer": None if won is None else won.winner,
                "exact": None if won is None else won.remembered,
                "last_conflict": None if won is None else datetime.fromtimestamp(won.time_ms / 1000, UTC).isoformat(timespec="seconds"),
                "client_id": None if won is None else won.client_id,
            }
        )
    return {
        "partition": partition,
        "remembered_locks": table.entries,
        "remembered_locks_max": table.entries_max,
        "floor": table.floor,
        "conflicts": table.conflicts,
        "conflicts_lock_table_full": table.floor_conflicts,
        "waiting": table.waiting,
        "locks": rows,
    }


def _show(facts: Sequence[dict[str, Any]], names: dict[str, str], output: str) -> None:
    if output != "table":
        print_data(list(facts), output)
        return
    print_table(
        ("partition", "locks", "floor", "conflicts", "lock table full", "waiting"),
        [
            (each["partition"], each["remembered_locks"], each["floor"], each["conflicts"], each["conflicts_lock_table_full"], each["waiting"])
            for each in facts
        ],
    )
    rows = [_row(each["partition"], lock) for each in facts for lock in each["locks"]]
    if rows:
        print_table(("partition", "lock", "conflicts", "last writer", "last conflict", "client"), rows)
    if not names and rows:
        print_line("locks are shown by their hash; --lock name:key finds one")


def _row(partition: int, lock: dict[str, Any]) -> tuple[object, ...]:
    writer = lock["last_writer"] if lock["exact"] in (True, None) else f"at most {lock['last_writer']}"
    return partition, lock["name"] or lock["lock"], lock["conflicts"], writer, lock["last_conflict"], lock["client_id"]
