"""`waltz trace`: one transaction, from the client that sent it to the table version that holds it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import entry_points

from waltz_log.cli.connecting import reached
from waltz_log.cli.printing import print_data, print_line
from waltz_log.client.inspection.transaction_trace import HoldingReplica, TableVersion, TransactionTrace, trace
from waltz_log.errors import InvalidSetting
from waltz_log.exit_codes import OK
from waltz_log.extras import install_advice, missing_package

__all__ = ["TABLES", "as_json", "as_lines", "run", "show"]

TABLES = "waltz.tables"
"""Entry points that find a transaction in a table: `delta` is the plugin of the Delta sink."""

TableLookup = Callable[[str, int, int, str], TableVersion]
"""For a path, a partition, a transaction id and the cluster key."""


async def run(address: str, partition: int, transaction_id: int, *, table: str | None, output: str, principal: str | None, timeout_s: float) -> int:
    lookup = None if table is None else _lookup()
    async with reached(address, timeout_s) as owners:
        found = await trace(owners, partition, transaction_id, principal=principal or "", timeout_s=timeout_s)
    return await show(found, table=table, lookup=lookup, output=output)


async def show(found: TransactionTrace, *, table: str | None, lookup: TableLookup | None, output: str) -> int:
    """Prints the trace. Raises the errors of the table's lookup."""
    held = None
    if table is not None and lookup is not None:
        held = await asyncio.to_thread(lookup, table, found.partition, found.transaction_id, found.cluster_key)
    if output != "table":
        print_data(as_json(found, held), output)
    else:
        for line in as_lines(found, held):
            print_line(line)
    return OK


def _lookup() -> TableLookup:
    """Raises `InvalidSetting` if no package that knows tables is installed."""
    for declared in entry_points(group=TABLES, name="delta"):
        try:
            lookup: TableLookup = declared.load()
        except ImportError as error:
            raise InvalidSetting(
                name="--table", reason=f"needs {missing_package(error) or f'a package that is not installed: {error}'}", nearest=None
            ) from None
        return lookup
    raise InvalidSetting(name="--table", reason=f"needs the Delta sink: {install_advice('spark')}", nearest=None)


def as_json(found: TransactionTrace, held: TableVersion | None) -> dict[str, object]:
    """Times in ISO 8601, UTC. `table` is null without `--table`."""
    shown: dict[str, object] = asdict(found)
    del shown["append_time_ms"]
    shown["timestamp"] = _time(found.append_time_ms)
    return shown | {"table": None if held is None else asdict(held)}


def as_lines(found: TransactionTrace, held: TableVersion | None) -> Iterator[str]:
    block = found.block
    session = f"session {found.session}" if found.session is not None else f"a session before {found.owner_session}"
    yield f"transaction  {found.transaction_id} of partition {found.partition}, header {found.header}, {block.record_bytes} bytes"
    yield f"sender       client {found.client_id}, generation {found.generation}, sequence {found.sequence}"
    yield f"appended     {_time(found.append_time_ms)} in {session}"
    yield f"block        transactions {block.first_transaction_id} to {block.last_transaction_id}, at byte {block.offset} of {block.bytes}"
    for replica in found.replicas:
        yield f"replica      {replica.name}: {_held(replica)}"
    if held is not None:
        yield f"table        {held.path}: {_version(held)}"


def _held(replica: HoldingReplica) -> str:
    if replica.holds is None:
        return f"unknown: {replica.reason}"
    return "holds it" if replica.holds else str(replica.reason)


def _version(held: TableVersion) -> str:
    if held.version is None:
        return f"not there yet, the table ends at transaction {held.mark}"
    return f"version {held.version}" if held.exact else f"version {held.version} or an older one that the table's log does not list any more"


def _time(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
