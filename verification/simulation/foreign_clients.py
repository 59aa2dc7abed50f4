"""Clients that use state of others: marks of another partition, and outcomes that another client's process resolves."""

from __future__ import annotations

from verification.simulation.clients import LOCKS, Actor, client_kind, resolve
from waltz_log.client import WaltzClient
from waltz_log.errors import InvalidRequest, Unavailable

__all__ = ["append_with_foreign_marks", "resolve_for_another"]

HEAL_S = 30.0
"""The time after the load until every client appends again: the last faults end, and then everything heals."""

ABOVE = 1000
"""A mark that no partition of a run has reached."""


@client_kind("foreign-marks")
async def append_with_foreign_marks(actor: Actor) -> None:
    """Appends under shared locks with the high-water mark of another partition, or with one that no partition has. Above the log it is refused;
    below it is a mark like any other."""
    client = await actor.connect()
    others = [each for each in range(actor.world.mix.partitions) if each != actor.partition]
    for _ in range(actor.operations):
        if actor.over.is_set():
            break
        mark = ABOVE
        if others and actor.rng.random() < 0.8:
            try:
                mark = await client.high_water_mark(actor.rng.choice(others))
            except Unavailable:
                continue
        attempt = actor.begin(write=(f"l{actor.rng.randrange(LOCKS)}",), mark=mark, timeout_s=actor.rng.choice((0.3, 2.0)))
        try:
            await actor.append(client, attempt)
        except InvalidRequest:
            attempt.outcome, attempt.ended_s = "not appended", actor.world.now_s
            attempt.answers += 1
            actor.announce(f"attempt {attempt.number} refused, its mark is {mark}")
        await actor.pause(0.03)
    await actor.resolve_all(client)
    await client.close()


@client_kind("resolved-by-another")
async def resolve_for_another(actor: Actor) -> None:
    """Appends with deadlines that pass, and continues, while another client resolves each outcome on its behalf. The connection of the living client
    is fenced, and the answer to the other one is final."""
    client = await actor.connect()
    other = await actor.connect()
    for _ in range(actor.operations):
        if actor.over.is_set():
            break
        await actor.append(client, actor.begin(timeout_s=actor.rng.choice((0.005, 0.02, 2.0))))
        for number, unknown in list(actor.unknown.items()):
            if actor.rng.random() < 0.7:
                await resolve(actor, other, actor.world.history.attempts[number], unknown)
                del actor.unknown[number]
        await actor.pause(0.03)
    await actor.resolve_all(other)
    await _append_when_healed(actor, client)
    await other.close()
    await client.close()


async def _append_when_healed(actor: Actor, client: WaltzClient) -> None:
    """After the load, the client whose outcomes were resolved elsewhere appends like any other."""
    await actor.over.wait()
    committed = False
    deadline = actor.world.now_s + HEAL_S
    while not committed and actor.world.now_s < deadline:
        attempt = actor.begin(timeout_s=3.0)
        await actor.append(client, attempt)
        committed = attempt.outcome == "committed"
        await actor.pause(0.1)
    if not committed:
        actor.world.history.complaints.append(f"3: a client whose outcomes another resolved appends no more: client={actor.name}")
