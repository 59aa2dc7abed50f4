"""The outbox as one more kind of client in the simulator, beside the others and under all of its faults and checkers."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from verification.simulation.clients import CLIENT_KINDS, ClientKind
from verification.simulation.mix import Mix, draw
from verification.simulation.outbox_client import forward_from_an_outbox
from verification.simulation.run import Outcome
from waltz_log.outbox import lane
from waltz_log.outbox.settle import Settled

runs = importlib.import_module("verification.simulation.run")  # the package has a function of this name

FIRST = int(os.environ.get("FIRST_SEED", "0"))

FAILED_ONCE = (10_019, 10_027, 10_043, 10_048, 10_092, 10_105, 10_137, 10_192)
"""10019: the log was longer than a call could search, and each `resolve` started again. The others: a service that a fault killed went on accepting,
for the harness left its tasks alive, and there was no answer for what they read."""


def judge(seed: int, patch: pytest.MonkeyPatch) -> list[str]:
    """What is wrong with a run of the simulator in which one or two of the seed's clients are services with outboxes."""
    return _run(seed, patch).wrong


def _run(seed: int, patch: pytest.MonkeyPatch, **mixed: Any) -> Outcome:

    def with_outboxes(seed: int, clients: Sequence[str], faults: Sequence[str], *chances: Mapping[str, float]) -> Mix:
        mix = draw(seed, [kind for kind in clients if kind != "outbox"], faults, *chances)
        return replace(mix, clients=[*list(mix.clients)[: 1 + seed % 3], *["outbox"] * (1 + seed % 2)], **mixed)

    patch.setitem(CLIENT_KINDS, "outbox", ClientKind(forward_from_an_outbox))
    patch.setattr(runs, "draw", with_outboxes)
    outcome: Outcome = runs.run(seed)
    return outcome


@pytest.mark.parametrize("seed", range(FIRST, FIRST + int(os.environ.get("SEEDS", "3"))))
def test_no_checker_finds_anything_wrong_with_an_outbox_among_the_clients(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert judge(seed, monkeypatch) == []


@pytest.mark.parametrize("seed", FAILED_ONCE)
def test_seeds_that_found_something_stay_clean(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert judge(seed, monkeypatch) == []


def test_a_service_that_was_killed_accepts_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(3):
        outcome = _run(seed, monkeypatch, faults={"client-kill": 1.0}, nemeses=1, fault_pause_s=0.3)
        reported = list(outcome.trace.lines)
        (dead,) = [line.split()[1] for line in reported if line.endswith("is killed") and "client-" in line]
        at = next(place for place, line in enumerate(reported) if line.endswith("is killed") and dead in line)
        assert not [line for line in reported[at + 1 :] if dead in line]
        assert outcome.wrong == []


def test_the_checkers_catch_an_outbox_that_sends_again_without_asking_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    async def settled(mounting: Any, *_: Any) -> Settled:
        await mounting.mounted()
        return Settled({}, True)

    monkeypatch.setattr(lane, "settle", settled)
    assert any("nothing_is_in_the_log_twice" in wrong for seed in range(20) for wrong in judge(seed, monkeypatch))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10_000, 10_200))
def test_no_checker_finds_anything_wrong_in_many_seeds(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert judge(seed, monkeypatch) == []
