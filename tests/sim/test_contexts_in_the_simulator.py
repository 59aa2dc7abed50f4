"""Applications with contexts among the clients of the simulator; what older seeds draw does not depend on it. More of them:

make sim FIRST_SEED=200000 SEEDS=1000
"""

from __future__ import annotations

from collections import Counter

import pytest

from verification.simulation import context_client
from verification.simulation.clients import CLIENT_KINDS
from verification.simulation.mix import CONTEXTS, CONTEXTS_FROM, draw
from verification.simulation.run import run
from waltz_log.client import Application, Context, TransactionContext


def test_contexts_are_judged_like_every_append_and_meet_conflicts(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: Counter[str] = Counter()
    settle = context_client._Count._settle

    def counted(self: context_client._Count, outcome: str) -> None:
        ends[outcome] += self._attempt is not None
        settle(self, outcome)

    monkeypatch.setattr(context_client._Count, "_settle", counted)
    for seed in (CONTEXTS_FROM, CONTEXTS_FROM + 1, CONTEXTS_FROM + 5, CONTEXTS_FROM + 6):
        outcome = run(seed)
        assert outcome.wrong == [], outcome.command
        assert CONTEXTS in outcome.mix.clients
    assert ends["committed"] > 50
    assert ends["rejected"] > 0


def test_a_context_whose_mark_claims_more_than_it_saw_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Application.execute

    async def boasting(self: Application, context: Context, partition: int, applied: int, attempt: int) -> TransactionContext:
        return await honest(self, context, partition, applied + 1, attempt)  # further ahead the mark would mostly be above the log, and refused

    monkeypatch.setattr(Application, "execute", boasting)
    seeds = range(CONTEXTS_FROM, CONTEXTS_FROM + 40)
    assert any("counts_have_no_lost_update" in wrong for seed in seeds for wrong in run(seed).wrong)


def test_seeds_below_the_band_draw_the_same_run_as_without_contexts() -> None:
    kinds = sorted(CLIENT_KINDS)
    assert CONTEXTS in kinds
    for seed in range(200):
        assert draw(seed, kinds, ["a", "b"]) == draw(seed, [kind for kind in kinds if kind != CONTEXTS], ["a", "b"])
        assert CONTEXTS not in draw(seed, kinds, ["a", "b"]).clients
