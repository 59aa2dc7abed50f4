"""`waltz cluster replica`: add, remove or replace replicas of partitions while they are in use. Asks, writes the assignment by compare-and-set,
waits. What is safe is decided by the rules (`core.replica_change`) and held by the owner, which goes on in a new session for each step. Interrupted,
the step that was begun goes on in the cluster, and the same command goes on from there.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter, deque
from collections.abc import Callable

from waltz_log.cli.cluster.fills import describe_fill, fill_of
from waltz_log.cli.connecting import connected
from waltz_log.cli.partition_ranges import parse_ranges
from waltz_log.cli.printing import print_data, print_line, print_result, print_table
from waltz_log.cli.watching import watched
from waltz_log.coordination.cluster import expect_known
from waltz_log.coordination.entries import parsed
from waltz_log.coordination.survey import Survey, survey
from waltz_log.core.metadata import REPLICAS, PartitionMetadata, ReplicaAssignment, partition_path
from waltz_log.core.ports import Coordinator, Network
from waltz_log.core.replica_change import ReplicaChange, next_assignment, risk_of, settled
from waltz_log.core.replica_status import ReplicaStatus
from waltz_log.core.status.server_statistics import OpenPartitionStatistics
from waltz_log.errors import InvalidRequest, Unavailable, WaltzError
from waltz_log.exit_codes import OK

__all__ = ["change_replicas", "listing", "run"]

POLL_EVERY_S = 0.25
"""While a replica is being filled."""

RENEWAL_PATIENCE_S = 3.0
"""For this long, a change that would leave no majority is judged again: while a store session is renewed, no replica is recorded as clean."""


async def run(
    address: str, partitions: str, *, add: str | None, remove: str | None, force: bool, at_once: int, wait_s: float, output: str, timeout_s: float
) -> int:
    """Changes the replicas of one partition, of ranges, or of all that the change concerns. If some cannot be changed, the others still are; then the
    first error is raised."""
    wanted = None if partitions == "all" else parse_ranges("PARTITIONS", partitions)
    ReplicaChange(0, add, remove, force)  # refuses what can never be
    async with connected(address, timeout_s) as (coordinator, network):
        if wanted is None:
            node = await coordinator.get(REPLICAS, latest=True)
            held = parsed(REPLICAS, node, ReplicaAssignment.from_bytes).replicas if node else {}
            wanted = tuple(p for p, names in sorted(held.items()) if (remove is None or remove in names) and (add is None or add not in names))
        errors: dict[int, WaltzError] = {}
        report = print_line if output == "table" else _progress_on_stderr
        waiting = deque(wanted)

        async def work() -> None:
            while waiting:
                change = ReplicaChange(waiting.popleft(), add, remove, force)
                try:
                    await change_replicas(coordinator, network, address, change, wait_s=wait_s, report=report)
                except WaltzError as error:
                    if len(wanted) > 1:
                        report(f"partition {change.partition}: {error}")
                    errors[change.partition] = error

        async with asyncio.TaskGroup() as group:
            for _ in range(min(at_once, len(wanted))):
                group.create_task(work())
    summary = [] if len(wanted) == 1 else [f"{len(wanted) - len(errors)} of {len(wanted)} partitions done"]
    failed = {str(partition): str(error) for partition, error in sorted(errors.items())}
    print_result({"added": add, "removed": remove, "done": [each for each in wanted if each not in errors], "failed": failed}, summary, output)
    for error in errors.values():
        raise error
    return OK


def _progress_on_stderr(text: str) -> None:
    """For programs, which read one document on standard output."""
    print_line(text, file=sys.stderr)


async def listing(address: str, *, output: str, every_s: float | None, timeout_s: float) -> int:
    """The replicas of each partition with their states, and how many each storage node holds."""
    async with connected(address, timeout_s) as (coordinator, network):

        async def once() -> int:
            return _list(await survey(coordinator, network, address), output)

        return await watched(once, every_s=every_s, output=output)


def _list(found: Survey, output: str) -> int:
    held = Counter(replica.name for each in found.partitions for replica in each.replicas)
    if output != "table":
        partitions = [
            {"partition": each.partition, "replicas": {replica.name: str(replica.status) for replica in each.replicas}} for each in found.partitions
        ]
        print_data({"partitions": partitions, "nodes": {node.name: held[node.name] for node in found.storages}}, output)
        return OK
    rows = [(each.partition, ", ".join(f"{replica.name} {replica.status}" for replica in each.replicas)) for each in found.partitions]
    print_table(("partition", "replicas"), rows)
    print_table(
        ("storage node", "replicas", "drained"),
        [(node.name, held[node.name], "yes" if node.name in found.drained else "") for node in found.storages],
    )
    return OK


async def change_replicas(
    coordinator: Coordinator, network: Network, address: str, change: ReplicaChange, *, wait_s: float, report: Callable[[str], None]
) -> None:
    """Returns when the change is complete. Raises `InvalidRequest` and `Unavailable` as the rules do, and `Unavailable` if it takes longer than
    `wait_s`: what was begun goes on."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_s
    patience_ends = loop.time() + min(wait_s, RENEWAL_PATIENCE_S)
    while True:
        node = await coordinator.get(REPLICAS, latest=True)
        held = parsed(REPLICAS, node, ReplicaAssignment.from_bytes).replicas if node else {}
        if node is None or change.partition not in held:
            raise InvalidRequest(reason=f"no such partition: {change.partition}")
        assigned = held[change.partition]
        found = await survey(coordinator, network, address)
        expect_known([each for each in (change.add, change.remove) if each is not None], {each.name for each in found.storages})
        if change.add is not None and not any(each.name == change.add and each.answers for each in found.storages):
            raise InvalidRequest(reason=f"no storage node of that name answers: {change.add}")
        if _added(change, assigned):
            await _wait(coordinator, network, address, change, assigned, deadline, report)
        metadata = await _metadata(coordinator, change.partition)
        try:
            wanted = next_assignment(change, assigned, metadata, _live(found, change.partition))
        except Unavailable:
            if loop.time() > patience_ends:
                raise
            await asyncio.sleep(POLL_EVERY_S)
            continue
        if wanted is None:
            report(_result(change, assigned))
            return
        if await coordinator.set(REPLICAS, ReplicaAssignment(held | {change.partition: wanted}).to_bytes(), node.version) is None:
            report("another process changed replicas at the same time, trying again")
            continue
        if (risk := risk_of(change.partition, assigned, wanted, metadata)) is not None:
            report(f"warning: {risk}")
        report(f"partition {change.partition}: {', '.join(assigned)} becomes {', '.join(wanted)}")
        await _wait(coordinator, network, address, change, wanted, deadline, report)
        if (change.add is None or change.add in wanted) and change.remove not in wanted:
            report(_result(change, wanted))
            return


def _result(change: ReplicaChange, assigned: tuple[str, ...]) -> str:
    return f"partition {change.partition}: replicas are {', '.join(assigned)}"


def _added(change: ReplicaChange, assigned: tuple[str, ...]) -> str | None:
    return change.add if change.add in assigned else None


async def _wait(
    coordinator: Coordinator,
    network: Network,
    address: str,
    change: ReplicaChange,
    assigned: tuple[str, ...],
    deadline: float,
    report: Callable[[str], None],
) -> None:
    """Waits until the owner works with the assignment and the added replica is clean. Reports the progress."""
    last_line = ""
    while not settled(assigned, await _metadata(coordinator, change.partition), _added(change, assigned)):
        if asyncio.get_running_loop().time() > deadline:
            raise Unavailable(reason=f"not complete yet, the cluster goes on with it: partition={change.partition} replicas={','.join(assigned)}")
        line = _progress(await survey(coordinator, network, address), change)
        if line != last_line:
            report(line)
            last_line = line
        await asyncio.sleep(POLL_EVERY_S)


async def _metadata(coordinator: Coordinator, partition: int) -> PartitionMetadata:
    node = await coordinator.get(partition_path(partition), latest=True)
    if node is None:
        raise Unavailable(reason=f"the partition was never opened: partition={partition}")
    return parsed(partition_path(partition), node, PartitionMetadata.from_bytes)


def _as_owned(found: Survey, partition: int) -> OpenPartitionStatistics | None:
    """As the server that serves the partition reports it."""
    reported = (server.statistics.partitions.get(partition) for server in found.servers)
    return next((each for each in reported if isinstance(each, OpenPartitionStatistics)), None)


def _live(found: Survey, partition: int) -> frozenset[str]:
    """Those that hold everything and can serve it: not one that has corrupt segments to repair."""
    repairing = {node.name for node in found.storages if partition in node.statistics.repairing}
    owned = _as_owned(found, partition)
    replicas = {} if owned is None else owned.replicas
    return frozenset(name for name, replica in replicas.items() if replica.state is ReplicaStatus.LIVE and name not in repairing)


def _progress(found: Survey, change: ReplicaChange) -> str:
    if change.add is None:
        return f"partition {change.partition}: waiting for its owner"
    owned = _as_owned(found, change.partition)
    fill = fill_of(owned, change.add)
    if fill is not None:
        return f"partition {change.partition}: {change.add} holds {describe_fill(fill)}"
    stored = (each for node in found.storages if node.name == change.add for each in node.statistics.partitions)
    held = next((each.last_transaction_id for each in stored if each.partition == change.partition), -1)
    whole = "?" if owned is None else f"{max(held, owned.committed) + 1:,}"
    return f"partition {change.partition}: {change.add} holds {held + 1:,} of {whole} transactions"
