"""Under faults: an append whose mark is above the log never gets in, and every honest mark beside it is judged as ever."""

from __future__ import annotations

from collections import Counter

import pytest

from verification.simulation.clients import CLIENT_KINDS, Actor, ClientKind, resolve
from verification.simulation.run import run
from waltz_log.client import Lock
from waltz_log.errors import InvalidRequest, WaltzError

SEEDS = range(16)


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Of appends with a mark far above the log, which producers make between their own."""
    ends: Counter[str] = Counter()
    honest = CLIENT_KINDS["producer"].run

    async def boasting(actor: Actor) -> None:
        await honest(actor)
        client = await actor.connect()
        for number in range(24):
            # It uses a lock that others of the partition hold; the history knows nothing of it, so it must never be in the log.
            attempt = actor.begin(write=(f"l{number % 5}",), mark=10**12, timeout_s=1.0)
            try:
                await client.append(
                    actor.partition, actor.data(attempt), write_locks=[Lock("l", attempt.write[0])], high_water_mark=10**12, timeout_s=1.0
                )
                attempt.outcome, attempt.ended_s = "committed", actor.world.now_s
            except InvalidRequest as error:
                attempt.outcome, attempt.ended_s = "not appended", actor.world.now_s
                ends["refused with both numbers"] += "high_water_mark=1000000000000 newest=" in str(error)
            except WaltzError as error:
                attempt.outcome = "unknown" if error.outcome == "unknown" else "not appended"
                attempt.ended_s = actor.world.now_s  # the answer; `resolve` has its own time
                if attempt.outcome == "unknown":
                    await resolve(actor, client, attempt, error)  # type: ignore[arg-type]
                    assert attempt.resolved == "absent"
            attempt.answers += 1
            ends[attempt.outcome] += 1
        await client.close()

    monkeypatch.setitem(CLIENT_KINDS, "producer", ClientKind(boasting))
    return ends


def test_a_mark_above_the_log_never_gets_in_under_faults(ends: Counter[str]) -> None:
    for seed in SEEDS:
        outcome = run(seed)
        assert outcome.wrong == [], outcome.command
    assert ends["committed"] == 0
    assert ends["refused with both numbers"] > 20
