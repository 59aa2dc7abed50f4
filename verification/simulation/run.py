"""One seed, one run: a cluster, clients and faults as drawn from the seed; then everything heals, and the evidence is collected. The seed is the only
source of randomness, and nothing depends on wall time. A run that does not end or heals too late is a finding like any other."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

from verification.simulation import (
    bulk_client,
    clock_faults,
    context_client,
    cut_off_faults,
    deposed_faults,
    disk_faults,
    feeding_client,
    foreign_clients,
    impostor_client,
    intruder_client,
    message_faults,
    outbox_client,
    partner_client,
    reading_clients,
    refill_faults,
    replica_faults,
    rot_faults,
)
from verification.simulation.checkers import check
from verification.simulation.clients import CLIENT_KINDS, Actor, resolve, run_client
from verification.simulation.faults import CHANCES, FAULTS
from verification.simulation.growth import Growth
from verification.simulation.history import Evidence
from verification.simulation.kept import KeptTopics
from verification.simulation.locks_seen import observing
from verification.simulation.mix import Mix, draw
from verification.simulation.refill_faults import with_slow_fills
from verification.simulation.restored import RestoredCoordinator
from verification.simulation.trace import Trace
from verification.simulation.world import World
from waltz_log.client import Transaction, WaltzClient
from waltz_log.core.locks.locks import FEW_LOCKS
from waltz_log.errors import WaltzError
from waltz_log.testing.disk import SimulatedDisk
from waltz_log.testing.offload import HangingOffload
from waltz_log.testing.virtual_time import run_in_virtual_time

__all__ = ["Outcome", "run"]

REGISTERED = (
    foreign_clients,
    impostor_client,
    intruder_client,
    clock_faults,
    bulk_client,
    context_client,
    cut_off_faults,
    deposed_faults,
    disk_faults,
    feeding_client,
    message_faults,
    outbox_client,
    partner_client,
    reading_clients,
    refill_faults,
    replica_faults,
    rot_faults,
)
"""Modules whose kinds and faults are there because they are imported."""

STRANGERS = (impostor_client.IMPOSTOR, intruder_client.INTRUDER, partner_client.PARTNER)
"""Kinds of clients with an identity of their own."""

HEAL_BOUND_S = 12.0
"""After the last fault: recovery, the clients' own pauses and an append. Timeouts of the simulated nodes are a second or two."""

RUN_BOUND_S = 120.0
"""The virtual time after which a run counts as hanging."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """`digest`, `drawn`, `ended_s`: the same for every run of the seed."""

    seed: int
    wrong: list[str]
    mix: Mix
    trace: Trace
    digest: str
    drawn: float
    ended_s: float
    attempts: int
    committed: int

    @property
    def command(self) -> str:
        return f"make sim SEED={self.seed}"


def run(seed: int, show: Callable[[str], None] | None = None, *, alter: Callable[[Mix], Mix] | None = None) -> Outcome:
    """`alter`: changes what the seed has drawn, for a test of one thing."""
    trace = Trace(show)
    with trace.recording():
        return run_in_virtual_time(_run(seed, trace, alter))


async def _run(seed: int, trace: Trace, alter: Callable[[Mix], Mix] | None) -> Outcome:
    drawn = draw(seed, sorted(CLIENT_KINDS), sorted(set(FAULTS) - set(CHANCES)), CHANCES)
    drawn = with_slow_fills(drawn)
    mix = drawn if alter is None else alter(drawn)
    world = World(seed, mix, trace)
    trace.add("seed", f"{seed} {mix.describe()}")
    wrong: list[str] = []
    broken: list[str] = []

    def defect(_loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        broken.append(f"no_client_complains: a task broke: {context.get('message')} {context.get('exception')!r}")

    asyncio.get_running_loop().set_exception_handler(defect)
    try:
        with observing(world.history, Random(f"few locks {seed}").choice((1, FEW_LOCKS))):
            async with asyncio.timeout(RUN_BOUND_S):
                wrong = check(await _play(world))
    except TimeoutError:
        wrong = [f"everything_heals: 12: the run hangs: {_where(world)}"]
    except (WaltzError, OSError) as error:
        wrong = [f"everything_heals: 12: the run ended with {error!r}"]
    except Exception as error:  # a defect of the simulator: the range continues and names the seed
        trace.add("broken", traceback.format_exc())
        wrong = [f"no_client_complains: the run broke: {error!r}"]
    wrong = wrong or _left_running()
    wrong += [f"no_client_complains: {defect}" for defect in world.network.defects] + broken
    history = world.history
    for each in wrong:
        trace.add("wrong", each)
    return Outcome(
        seed=seed,
        wrong=wrong,
        mix=mix,
        trace=trace,
        digest=trace.digest(),
        drawn=sum(rng.random() for rng in (world.rng, world.chance, world.links.rng)),
        ended_s=world.now_s,
        attempts=len(history.attempts),
        committed=sum(attempt.outcome == "committed" for attempt in history.attempts),
    )


def _left_running() -> list[str]:
    """Tasks of nodes and clients that have all ended. The code that began such a task has forgotten it."""
    left = [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    # What hung when its node was killed never returns: the thread would have ended with the process.
    return [f"nothing_runs_on: 32: {each}" for each in sorted(left) if each != HangingOffload.__call__.__qualname__]


def _where(world: World) -> str:
    pending = [attempt.number for attempt in world.history.attempts if attempt.outcome == "pending"]
    return f"pending={pending[:5]} clients={sorted(world.clients)} busy={sorted(world.busy)}"


async def _play(world: World) -> Evidence:
    await world.start()
    over = asyncio.Event()
    kept = KeptTopics(world, over)
    await kept.begin()
    rng = Random(f"clients {world.seed}")
    actors = []
    for place, kind in enumerate(world.mix.clients):
        process = world.client(f"{kind if kind in STRANGERS else 'client'}-{place}")
        actors.append(Actor(world, process, kind, Random(rng.random()), over))
    work = [actor.process.process.spawn(run_client(actor)) for actor in actors]
    growth = Growth(world, over)
    world.grow = growth.grow
    restored = RestoredCoordinator(world)
    watching = asyncio.gather(restored.watch(), growth.watch())
    nemeses = [asyncio.ensure_future(_nemesis(world, Random(rng.random()), over)) for _ in range(world.mix.nemeses if world.mix.faults else 0)]
    await asyncio.sleep(world.mix.load_s)
    over.set()
    await asyncio.gather(*nemeses, watching)
    world.trace.add("faults", "are over")
    await _calm(world)
    healed_s = world.now_s
    first_append_s = await _append_everywhere(world, healed_s)
    if world.mix.access:
        await intruder_client.lose_a_right(world)
    await restored.play(partial(_append_everywhere, world))
    actors += growth.actors
    work += growth.work
    await asyncio.gather(*work, return_exceptions=True)
    await kept.finish(HEAL_BOUND_S)
    for attempt in world.history.attempts:
        if attempt.outcome == "pending" and attempt.client in world.clients and world.clients[attempt.client].died:
            attempt.outcome = "died"
    for task in work:
        if not task.cancelled() and task.exception() is not None:
            world.history.complaints.append(f"22: a client broke: {task.exception()!r}")
    return await _gather(world, actors, kept, healed_s, first_append_s)


async def _nemesis(world: World, rng: Random, over: asyncio.Event) -> None:
    kinds, weights = list(world.mix.faults), list(world.mix.faults.values())
    while not over.is_set():
        await asyncio.sleep(rng.uniform(0, 2 * world.mix.fault_pause_s))
        if not over.is_set():
            await FAULTS[rng.choices(kinds, weights)[0]](world, rng)


async def _calm(world: World) -> None:
    """The network works, no more answers are lost, and a corrupt replica is emptied and replaced, as an operator would do."""
    weather = world.links.weather
    weather.loss = weather.duplication = weather.linger = 0.0
    world.ensemble.loses_answer = lambda: False
    for name in sorted(world.corrupted):
        world.trace.add(name, "is replaced, as it rots")
        world.loses_memory(name)
        await world.kill_storage(name, SimulatedDisk())
        await world.start_storage(name, replace=True)


async def _append_everywhere(world: World, healed_s: float, name: str = "prober") -> dict[int, float]:
    """A new client appends to every partition; how long after the last fault."""
    open_after_s: dict[int, float] = {}
    process = world.client(name)

    async def probe(partition: int) -> None:
        actor = Actor(world, process, name, Random(partition), asyncio.Event())
        actor.partition = partition
        client = await actor.connect()
        while partition not in open_after_s and world.now_s - healed_s < 3 * HEAL_BOUND_S:
            attempt = actor.begin(timeout_s=3.0)
            await actor.append(client, attempt)
            if attempt.outcome == "committed":
                open_after_s[partition] = world.now_s - healed_s
            await actor.resolve_all(client)
        await client.close()

    await asyncio.gather(*(process.process.spawn(probe(partition)) for partition in range(world.log_partitions)))
    return open_after_s


async def _gather(world: World, actors: list[Actor], kept: KeptTopics, healed_s: float, first_append_s: dict[int, float]) -> Evidence:
    process = world.client("checker")
    reader = Actor(world, process, "checker", Random(0), asyncio.Event())
    client = await reader.connect()
    attempts = world.history.attempts
    for actor in actors:
        for number, unknown in list(actor.unknown.items()):
            # Of a client that died: another process asks on its behalf.
            await resolve(reader, client, attempts[number], unknown)
    loss_window_s = {each: policies.flush_period_ms / 1000 + _late_s(world.mix) for each, policies in world.mix.in_memory.items()}
    if loss_window_s:  # what was reported as received can be read once its period is over
        await asyncio.sleep(max(loss_window_s.values()))
    logs: dict[int, list[Transaction]] = {}
    replicas: dict[int, dict[str, bytes | str]] = {}
    for partition in world.partitions:
        mark = await client.high_water_mark(partition)
        logs[partition] = await _read(client, partition, mark)
        replicas[partition] = await _settled(world, partition, mark)
    kept_evidence = await kept.gather(client, HEAL_BOUND_S)
    await client.close()
    for actor in (*actors, *kept.writers):
        await actor.process.close()
    await world.stop()
    return Evidence(
        history=world.history,
        replicas_assigned=dict.fromkeys(range(world.log_partitions), world.mix.replicas),
        logs=logs,
        replicas=replicas,
        healed_s=healed_s,
        first_append_s=first_append_s,
        heal_bound_s=HEAL_BOUND_S,
        lock_entries_max=int(str(world.mix.server_settings["lock_entries_max"])),
        quota=world.mix.quota,
        times_kept=not (world.history.memory_lost or world.history.operations_failed or world.corrupted),
        kept=kept_evidence,
        clocks_kept="clock" not in world.mix.faults,
        clock_rate_min=clock_faults.RATES[0] if "clock-drift" in world.mix.faults else 1.0,
        longest_pause_s=2.0 if "client-pause" in world.mix.faults else 0.0,
        loss_window_s=loss_window_s,
    )


def _late_s(mix: Mix) -> float:
    """How much later than its period a sync may end: a node that was stopped, or whose disk was full, had none."""
    late = {"storage-pause": 2.5, "disk-full": 2.0, "slow": 0.5, "disk-hang": disk_faults.HANG_S_MAX + 2.0}
    return 0.2 + sum(seconds for kind, seconds in late.items() if kind in mix.faults)


async def _read(client: WaltzClient, partition: int, mark: int) -> list[Transaction]:
    found: list[Transaction] = []
    if mark < 0:
        return found
    batches = client.feed_batches(partition, after=-1)
    async for batch in batches:
        found.extend(batch)
        if found[-1].transaction_id >= mark:
            break
    await batches.aclose()
    return found


async def _settled(world: World, partition: int, mark: int) -> dict[str, bytes | str]:
    """What each replica serves, once they agree or after a timeout."""
    deadline = world.now_s + HEAL_BOUND_S
    while True:
        stored = {name: await world.stored(name, partition, mark) for name in await world.assigned(partition)}
        if (len(set(stored.values())) == 1 and not any(isinstance(each, str) for each in stored.values())) or world.now_s > deadline:
            return stored
        await asyncio.sleep(0.1)
