"""Under faults: a process that resolves for another one leaves it alive, and a context hears of its completion before its transaction is applied."""

from __future__ import annotations

from collections import Counter

import pytest

from verification.simulation import clients
from verification.simulation.clients import Actor
from verification.simulation.history import Attempt
from verification.simulation.mix import CONTEXTS_FROM
from verification.simulation.run import run
from waltz_log.client import WaltzClient
from waltz_log.client.transactions.completions import Completions
from waltz_log.errors import OutcomeUnknown


def test_a_client_lives_on_when_another_process_resolves_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: Counter[str] = Counter()
    resolve_alone = clients.resolve

    async def resolve(actor: Actor, client: WaltzClient, attempt: Attempt, unknown: OutcomeUnknown) -> None:
        other = await actor.connect()
        in_flight = [actor.begin() for _ in range(3)]
        answers = [await actor.submit(client, each) for each in in_flight]
        await resolve_alone(actor, other, attempt, unknown)
        for each, answer in zip(in_flight, answers, strict=True):
            await actor.settle(each, answer)
            actor.unknown.pop(each.number, None)
        after = actor.begin()
        await actor.append(client, after)
        actor.unknown.pop(after.number, None)
        ends[f"{attempt.resolved}, then {after.outcome}"] += 1
        await other.close()

    monkeypatch.setattr(clients, "resolve", resolve)
    for seed in range(25):
        outcome = run(seed)
        assert outcome.wrong == [], outcome.command
    assert ends["absent, then committed"] > 0
    assert ends["committed, then committed"] > 0


def test_completions_that_apply_does_not_wait_for_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait_for(self: Completions, *_: object) -> None:
        """Waits for nothing."""

    monkeypatch.setattr(Completions, "wait_for", wait_for)
    wrong = [each for seed in range(10) for each in run(CONTEXTS_FROM + seed).wrong]
    assert any("applied before on_completion" in each for each in wrong)
