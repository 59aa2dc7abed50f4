"""Servers that lose the replicas and keep the coordinator. A server that could serve a partition better must get it soon, and it must stay there. The
fault observes the effect. While nothing else is wrong, it expects the hand-over within `hand_over_after_s` and `SLACK_S`. If no server reaches a
majority, the partition must stay where it is. Another fault on a participant restarts the observation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from verification.simulation.faults import fault
from waltz_log.core.hand_over import majority_of
from waltz_log.core.metadata import ASSIGNMENT, MANAGER, Assignment, Ownership
from waltz_log.server.base.node_probes import PROBE_TIMEOUT_S
from waltz_log.statistics import to_json

if TYPE_CHECKING:
    from verification.simulation.world import World

__all__ = ["cut_off_owner"]

LOOK_S = 0.05

SLACK_S = 4.0
"""Time in addition to `hand_over_after_s`: rounds, pings and lost answers of the coordinator, each with its pause."""

SERVED_S = 1.5
"""After this time at a server that reaches a majority, the observation is complete."""

STALE_S = 2 * PROBE_TIMEOUT_S + 0.5
"""How old what a server published of its replicas may be: a round lasts as long as its slowest ping, and counts until the next one ends."""

MOVES_MAX = 2
"""Moves of a partition during one cut: one hand-over, and one for balance."""


@dataclass(slots=True)
class _Watch:
    """How long a condition has held without interruption."""

    since_s: float
    generation: int
    moves: int = 0


@fault("cut-off", chance=0.5)
async def cut_off_owner(world: World, rng: Random) -> None:
    """The owner of a partition reaches a minority of its replicas, another server all of them, or no server does better; all reach the
    coordinator."""
    partition = rng.randrange(world.mix.log_partitions)
    for _ in range(20):  # other faults may have them just now
        held, owner = list(await world.assigned(partition)), await _owner(world, partition)
        servers = [name for name in sorted(world.servers) if name not in world.busy]
        free = "replicas" not in world.busy and all(name in world.storages and name not in world.busy for name in held)
        if free and owner is not None and owner[0] in servers and len(servers) > 1:
            break
        await asyncio.sleep(LOOK_S)
    else:
        return
    name = owner[0]
    better = rng.choice([other for other in servers if other != name]) if rng.random() < 0.7 else None
    ways = _shut(world, rng, name, held)
    for other in sorted(world.servers):
        if other not in (name, better) and (better is None or rng.random() < 0.5):
            ways += _shut(world, rng, other, held)
    world.trace.add(name, f"is cut off from a majority of the replicas of {partition}, {better or 'nobody'} does better")
    claimed = [*servers, *held, "replicas"]
    world.busy.update(claimed)
    try:
        await _watch(world, partition, held)
    finally:
        world.busy.difference_update(claimed)
        for way in ways:
            world.links.open(*way)
        world.trace.add(name, "reaches the replicas again")


def _shut(world: World, rng: Random, server: str, held: list[str]) -> list[tuple[str, str]]:
    """Leaves less than a majority; mostly both ways, at times one."""
    kept = rng.randint(0, len(held) // 2)
    both = rng.random() < 0.7
    ways: list[tuple[str, str]] = []
    for storage in rng.sample(held, len(held))[kept:]:
        one = (server, storage) if rng.random() < 0.5 else (storage, server)
        ways += [one, one[::-1]] if both else [one]
    for way in ways:
        world.links.shut(*way)
    return ways


async def _owner(world: World, partition: int) -> tuple[str, Ownership, bool] | None:
    """Its name, where it is up, and whether the partition was handed over for want of a majority."""
    node = await world.coordinator.get(ASSIGNMENT)
    if node is None:
        return None
    assignment = Assignment.from_bytes(node.data)
    owned = assignment.partitions.get(partition, Ownership(None, 0))
    for name, server in sorted(world.servers.items()):
        if server.server is not None and server.server.server_id == owned.server_id:
            return name, owned, partition in assignment.handed_over
    return None


async def _watch(world: World, partition: int, held: list[str]) -> None:
    after_s = float(str(world.mix.server_settings["hand_over_after_s"]))
    until_s = world.now_s + after_s + SLACK_S + 2.0
    served_s = 0.0
    watch: _Watch | None = None
    lacking: _Watch | None = None
    before: Any = None
    while world.now_s < until_s:
        await asyncio.sleep(LOOK_S)
        found, surroundings = await _owner(world, partition), await _cut_off_nodes(world, held)
        if found is None or surroundings is None or surroundings != before:
            before, watch, lacking = surroundings, None, None
            continue
        name, owned, handed_over = found
        able = [server for server in sorted(world.servers) if _reaches(world, server, held)]
        if watch is None or owned.generation < watch.generation:
            watch = _Watch(world.now_s, owned.generation)
        elif owned.generation > watch.generation:
            stale = world.now_s - watch.since_s <= STALE_S + world.mix.follower_lag_s
            if able or not stale:
                watch.moves += owned.generation - watch.generation
            watch.generation, lacking = owned.generation, None
        # If no server could do better, moves for the sake of balance harm no partition, as when another partition may go back to its server.
        if watch.moves > (MOVES_MAX if able else 0) and (able or handed_over) and world.now_s - watch.since_s > LOOK_S:
            _complain(world, f"partition {partition} moved {watch.moves} times while {','.join(able) or 'nobody'} reached a majority")
            return
        served_s = served_s + LOOK_S if name in able and watch.moves else 0.0
        if served_s > SERVED_S:
            return
        if name in able or not able or not _waits(world, name, partition):
            lacking = None
            continue
        lacking = lacking or _Watch(world.now_s, owned.generation)
        if world.now_s - lacking.since_s > after_s + SLACK_S:
            _complain(world, f"partition {partition} stays at {name}, which reaches no majority, while {','.join(able)} could serve it")
            return


def _complain(world: World, what: str) -> None:
    world.history.complaints.append(f"28: {what} at {world.now_s:.3f}")


def _reaches(world: World, server: str, held: Iterable[str]) -> bool:
    names = list(held)
    return majority_of([each for each in names if not (world.links.is_shut(server, each) or world.links.is_shut(each, server))], names)


def _waits(world: World, name: str, partition: int) -> bool:
    """Whether anything waits for a majority: an idle partition is not handed over, and harms no client. Nor one whose server is gone."""
    process = world.servers.get(name)
    server = None if process is None else process.server
    reported: dict[str, Any] = {} if server is None else to_json(server.statistics())["partitions"].get(str(partition), {})
    if any(replica["state"] == "full" or replica.get("full") for replica in reported.get("replicas", {}).values()):
        return False
    return bool(reported) and (reported["state"] != "open" or reported["last_transaction_id"] > reported["committed"])


async def _cut_off_nodes(world: World, held: list[str]) -> Any:
    """The state of everything that the hand-over needs besides the links, to detect changes; None if something is not healthy."""
    servers, storages = sorted(world.servers.items()), [world.storages.get(name) for name in held]
    if any(storage is None or storage.process.paused for storage in storages):
        return None
    for _, server in servers:
        if server.process.paused or server.server is None or any(each.ended or not each.connected or each.lags for each in server.sessions[-1:]):
            return None
    manager = await world.coordinator.get(MANAGER)
    if manager is None or manager.data not in [str(server.server.server_id).encode() for _, server in servers if server.server is not None]:
        return None
    links = [(name, each, _reaches(world, name, [each])) for name, _ in servers for each in held]
    lives = [storage.life for storage in storages if storage is not None]
    return [name for name, _ in servers], [id(server) for _, server in servers], lives, manager.data, links, sorted(world.links.slow)
