"""`waltz drain` and `waltz rebalance`: empties a log server or a storage node while the cluster is in use; spreads replicas evenly again.

The decision is recorded first, so the cluster holds it while the command is away: a drained server gets no partitions, also after a restart, and a
drained storage node gets no replicas. A killed command is repeated, and goes on from what it finds.
"""

from __future__ import annotations

import asyncio
import difflib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any  # JSON values

from waltz_log.cli.cluster.replica_moves import MoveRunner, able_nodes, read_replicas
from waltz_log.cli.connecting import connected
from waltz_log.cli.partition_ranges import format_ranges
from waltz_log.cli.printing import print_data, print_line, print_table
from waltz_log.coordination.placement import drain_node, read_servers, readmit_node
from waltz_log.coordination.survey import Survey, survey
from waltz_log.core.metadata import ReplicaMove
from waltz_log.core.ports import Coordinator, Network
from waltz_log.core.replica_moves import plan_drain, plan_rebalance
from waltz_log.errors import InvalidRequest, Unavailable
from waltz_log.exit_codes import OK, UNAVAILABLE
from waltz_log.outside_text import printable

__all__ = ["drain", "rebalance", "undo"]

POLL_EVERY_S = 0.25

OPENING_PATIENCE_S = 30.0
"""So long the command waits, after a server owns nothing any more, until the new owners serve every partition."""


async def drain(address: str, name: str, *, at_once: int, dry_run: bool, output: str, wait_s: float, timeout_s: float) -> int:
    report = _reporter(output)
    async with connected(address, timeout_s) as (coordinator, network):
        found = await survey(coordinator, network, address)
        if any(node.name == name for node in found.storages):
            runner = MoveRunner(coordinator, network, address, at_once, wait_s, report)
            return await _drain_storage(runner, found, name, dry_run=dry_run, output=output)
        server = await _server(coordinator, found, name)
        return await _drain_server(coordinator, network, address, server, dry_run=dry_run, output=output, wait_s=wait_s, report=report)


async def undo(address: str, name: str, *, dry_run: bool, output: str, timeout_s: float) -> int:
    """Ends a drain. A server gets partitions again at once; a storage node gets replicas with the next `waltz rebalance`."""
    async with connected(address, timeout_s) as (coordinator, network):
        found = await survey(coordinator, network, address)
        known = name if name in found.drained else await _server(coordinator, found, name)
        change = await readmit_node(coordinator, known, dry_run=dry_run)
    moves = [_move(*each) for each in change.moves]
    _show({"node": known, "dry_run": dry_run, "drained": dry_run, "moves": moves, "left": []}, output)
    return OK


async def rebalance(address: str, *, at_once: int, dry_run: bool, output: str, wait_s: float, timeout_s: float) -> int:
    report = _reporter(output)
    async with connected(address, timeout_s) as (coordinator, network):
        runner = MoveRunner(coordinator, network, address, at_once, wait_s, report)
        found = await runner.survey()
        if not dry_run:
            await runner.resume(found)
        moves = plan_rebalance(await read_replicas(coordinator), able_nodes(found))
        if not dry_run:
            await runner.run(moves)
    left = sorted(runner.failed)
    _show({"node": None, "dry_run": dry_run, "drained": False, "moves": [_replica_move(each) for each in moves], "left": left}, output)
    return _ended(runner.failed)


# ---- storage nodes ---------------------------------------------------------------------------------------------------------------------------------


async def _drain_storage(runner: MoveRunner, found: Survey, name: str, *, dry_run: bool, output: str) -> int:
    coordinator = runner.coordinator
    if not dry_run:
        await drain_node(coordinator, name)
        await runner.resume(found)
    moves, stuck = plan_drain(await read_replicas(coordinator), name, able_nodes(found))
    if not dry_run:
        await runner.run(moves)
        stuck = [partition for partition, held in (await read_replicas(coordinator)).items() if name in held]
    moved = [_replica_move(each) for each in moves if dry_run or each.partition not in stuck]
    _show({"node": name, "dry_run": dry_run, "drained": not dry_run and not stuck, "moves": moved, "left": sorted(stuck)}, output)
    if stuck and not runner.failed:
        others = f"no other storage node can hold partitions {format_ranges(stuck)}"
        raise Unavailable(reason=f"{others}: start one more, or readmit a drained one, and repeat the command")
    return _ended(runner.failed)


# ---- servers ---------------------------------------------------------------------------------------------------------------------------------------


async def _server(coordinator: Coordinator, found: Survey, name: str) -> str:
    """The address of a running server, or of one that is drained and stopped. Raises `InvalidRequest` for a name that no node has."""
    if name in found.drained:
        return name
    servers = {name: server.address for server in await read_servers(coordinator) for name in (str(server.server_id), server.address)}
    if name not in servers:
        known = sorted({*servers, *(node.name for node in found.storages)})
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f", did you mean {near[0]}" if near else f"; there are {', '.join(known)}"
        raise InvalidRequest(reason=f"no node of the cluster is named {name}{hint}")
    return servers[name]


async def _drain_server(
    coordinator: Coordinator,
    network: Network,
    address: str,
    server: str,
    *,
    dry_run: bool,
    output: str,
    wait_s: float,
    report: Callable[[str], None],
) -> int:
    change = await drain_node(coordinator, server, dry_run=dry_run)
    waiting: list[int] = []
    if not dry_run:
        for partition, _, after in change.moves:
            report(f"partition {partition} moves to server {after}")
        waiting = await _wait_moved(coordinator, network, address, server, wait_s, report)
    moves = [_move(*each) for each in change.moves]
    _show({"node": server, "dry_run": dry_run, "drained": not dry_run, "moves": moves, "left": waiting}, output)
    if waiting:
        unserved = f"no server serves partitions {format_ranges(waiting)} yet; see `waltz cluster status`"
        raise Unavailable(reason=f"the server owns nothing any more, but {unserved}")
    return OK


async def _wait_moved(
    coordinator: Coordinator, network: Network, address: str, server: str, wait_s: float, report: Callable[[str], None]
) -> list[int]:
    """Returns the partitions that are not served in the end. Raises `Unavailable` if the server still owns some."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_s
    empty_since: float | None = None
    last_line = ""
    while True:
        found = await survey(coordinator, network, address)
        ids = {each.server_id for each in found.servers if each.address == server}
        owned = [each.partition for each in found.partitions if each.server_id in ids]
        waiting = [each.partition for each in found.partitions if each.high_water_mark is None]
        line = f"{server} owns {len(owned)} partitions, {len(waiting)} are being opened elsewhere"
        if line != last_line:
            report(line)
            last_line = line
        now = loop.time()
        empty_since = None if owned else now if empty_since is None else empty_since
        if empty_since is not None and (not waiting or now - empty_since > min(OPENING_PATIENCE_S, wait_s)):
            return waiting
        if now > deadline:
            raise Unavailable(reason=f"not complete yet, the cluster goes on with it: server={server} partitions={format_ranges(owned)}")
        await asyncio.sleep(POLL_EVERY_S)


# ---- what is shown ---------------------------------------------------------------------------------------------------------------------------------


def _reporter(output: str) -> Callable[[str], None]:
    """Progress goes to stderr where a program reads stdout."""
    if output == "table":
        return print_line
    return lambda line: print(printable(line), file=sys.stderr, flush=True)


def _move(partition: int, before: int | None, after: int | None) -> dict[str, Any]:
    return {"partition": partition, "from": None if before is None else str(before), "to": None if after is None else str(after)}


def _replica_move(move: ReplicaMove) -> dict[str, Any]:
    return {"partition": move.partition, "from": move.remove, "to": move.add}


def _show(result: Mapping[str, Any], output: str) -> None:
    if output != "table":
        print_data(dict(result), output)
        return
    moves: Sequence[Mapping[str, Any]] = result["moves"]
    if result["dry_run"]:
        print_table(("partition", "from", "to"), [(each["partition"], each["from"], each["to"]) for each in moves])
    done = "would move" if result["dry_run"] else "moved"
    of = "" if result["node"] is None else f" of {result['node']}"
    left = f", {len(result['left'])} stay where they are: {format_ranges(result['left'])}" if result["left"] else ""
    print_line(f"{len(moves)} partitions{of} {done}{left}")


def _ended(failed: Mapping[int, Exception]) -> int:
    if not failed:
        return OK
    first = next(iter(failed.values()))
    print(f"waltz: {len(failed)} partitions are not moved yet, repeat the command: {printable(str(first))}", file=sys.stderr)
    return UNAVAILABLE
