"""A replica is emptied, and its fill lasts longer than ten store sessions. What it copied must survive the sessions, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Final

from verification.simulation.clients import SETTINGS
from verification.simulation.faults import claim, fault
from verification.simulation.history import Attempt
from verification.simulation.mix import Mix
from waltz_log.client import WaltzClient
from waltz_log.errors import NotAppended, OutcomeUnknown, WaltzError
from waltz_log.testing.disk import SimulatedDisk

if TYPE_CHECKING:
    from verification.simulation.world import World
    from waltz_log.server.replication.store_session import StoreSession

__all__ = ["REFILL", "fill_over_many_sessions", "with_slow_fills"]

REFILL: Final = "refill"

SLOW_FILL: Final[Mapping[str, object]] = {"feed_bytes_max": 256, "replica_bytes_in_flight": 1024}
"""Server settings of the runs that have the fault: a fill advances by a few transactions at a time."""

PRELOADED: Final = 160
SESSIONS: Final = 16
LASTS_S: Final = 10.0
LINK_DELAY_S: Final = 0.05
"""The delay to and from the storage node that is filled, in each direction."""
SESSION_S: Final = 6 * LINK_DELAY_S
"""A session that is shorter than the calls that begin a fill copies nothing, and keeps nothing."""


def with_slow_fills(mix: Mix) -> Mix:
    return replace(mix, server_settings={**mix.server_settings, **SLOW_FILL}) if REFILL in mix.faults else mix


@fault(REFILL, chance=0.15)
async def fill_over_many_sessions(world: World, rng: Random) -> None:
    """The next session begins whenever the replica has copied a little."""
    async with claim(world, world.fragile) as name:
        if name is None:
            return
        held = [partition for partition in range(world.mix.partitions) if name in await world.assigned(partition)]
        if not held:
            return
        partition = rng.choice(held)
        process = world.client(f"filler-{world.probes}")
        world.probes += 1
        try:
            client = await process.connect(SETTINGS, Random(world.probes))
            await asyncio.gather(*(_append(world, client, process.name, partition) for _ in range(PRELOADED)))
            world.loses_memory(name)
            await world.kill_storage(name, SimulatedDisk())
            world.trace.add(name, f"comes back empty, and is filled slowly: partition={partition}")
            world.links.slow[name] = LINK_DELAY_S
            await world.start_storage(name, replace=True)
            await _begin_sessions(world, client, process.name, name, partition)
        except WaltzError as error:
            world.trace.add(name, f"its fill is left alone: {error}")
        finally:
            world.links.slow.pop(name, None)
            for attempt in world.history.attempts:
                if process.died and attempt.client == process.name and attempt.outcome == "pending":
                    attempt.outcome = "died"
            await process.close()
            del world.clients[process.name]


async def _begin_sessions(world: World, client: WaltzClient, who: str, name: str, partition: int) -> None:
    until, sessions, before, began_s = world.now_s + LASTS_S, 0, -1, world.now_s
    while world.now_s < until and sessions < SESSIONS:
        await _append(world, client, who, partition)
        store, storage = _open_store(world, partition), world.storages.get(name)
        if store is None or storage is None or storage.node is None:
            await asyncio.sleep(0.05)
            continue
        if store.session != before:
            before, sessions, began_s = store.session, sessions + 1, world.now_s
        replica = await storage.node.partition(partition)
        kept = replica._sessions.mark.local_low_water_mark
        if replica.last_id > kept and not store.checkpoint_due and world.now_s >= began_s + SESSION_S:
            store.checkpoint_due = True  # as retention has it: it wants a higher low-water mark
            store.advanced.notify()
        await asyncio.sleep(0.01)


def _open_store(world: World, partition: int) -> StoreSession | None:
    for server in world.servers.values():
        owned = None if server.server is None else server.server._partitions.get(partition)
        if owned is not None and owned._serving is not None:
            return owned._serving.store
    return None


async def _append(world: World, client: WaltzClient, who: str, partition: int) -> None:
    history = world.history
    attempt = Attempt(len(history.attempts), who, "filler", partition, world.now_s, 1.0)
    history.attempts.append(attempt)
    try:
        receipt = await client.append(partition, f"{attempt.number}||{'x' * 200}".encode(), timeout_s=1.0)
        attempt.outcome, attempt.transaction_id = "committed", receipt.transaction_id
        attempt.in_memory = receipt.durability == "quorum_memory"
    except OutcomeUnknown:
        attempt.outcome = "unknown"
    except NotAppended:
        attempt.outcome = "not appended"
    attempt.ended_s, attempt.answers = world.now_s, 1
