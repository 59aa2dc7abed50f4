"""Clients that append in bulk among those of the simulator: each row is judged like a single append. What other seeds draw does not depend on them.

More of them: make sim FIRST_SEED=300000 SEEDS=1000
"""

from __future__ import annotations

from collections import Counter

import pytest

from verification.simulation import bulk_client
from verification.simulation.clients import CLIENT_KINDS, Actor
from verification.simulation.history import Attempt
from verification.simulation.mix import BATCHES, BATCHES_IN, draw
from verification.simulation.run import run
from waltz_log.client import WaltzClient
from waltz_log.errors import OutcomeUnknown


def test_rows_are_judged_like_every_append_and_end_in_every_way(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: Counter[str] = Counter()
    append, resolve = bulk_client._append, bulk_client._resolve

    async def counted(actor: Actor, client: WaltzClient, attempts: list[Attempt], timeout_s: float) -> int:
        try:
            return await append(actor, client, attempts, timeout_s)
        finally:
            ends.update(attempt.outcome for attempt in attempts)

    async def resolved(actor: Actor, client: WaltzClient, attempts: list[Attempt], error: OutcomeUnknown) -> None:
        await resolve(actor, client, attempts, error)
        ends.update(f"resolved {attempt.resolved}" for attempt in attempts)
        ends["ranges"] += error.count > 1

    monkeypatch.setattr(bulk_client, "_append", counted)
    monkeypatch.setattr(bulk_client, "_resolve", resolved)
    for seed in range(BATCHES_IN.start, BATCHES_IN.start + 12):
        outcome = run(seed)
        assert outcome.wrong == [], outcome.command
        assert BATCHES in outcome.mix.clients
    assert ends["committed"] > 200
    wanted = {"rejected", "not appended", "unknown", "resolved committed", "resolved absent", "ranges"}
    assert {each for each in wanted if not ends[each]} == set()


def test_other_seeds_draw_the_same_run_as_without_batches() -> None:
    kinds = sorted(CLIENT_KINDS)
    assert BATCHES in kinds
    for seed in (*range(100), *range(200_000, 200_050), *range(BATCHES_IN.stop, BATCHES_IN.stop + 50)):
        assert draw(seed, kinds, ["a", "b"]) == draw(seed, [kind for kind in kinds if kind != BATCHES], ["a", "b"])
        assert BATCHES not in draw(seed, kinds, ["a", "b"]).clients
