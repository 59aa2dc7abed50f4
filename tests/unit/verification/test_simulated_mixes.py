"""What a seed of the simulator draws."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable

import pytest

from verification.simulation import __main__ as program
from verification.simulation.clients import CLIENT_KINDS
from verification.simulation.mix import ACCESS_IN, draw
from verification.simulation.ranges import Failed, Range
from verification.simulation.run import STRANGERS


def test_clients_without_rights_take_part_only_where_rules_are_enforced() -> None:
    """Elsewhere they may do everything, and a kind that is added must not change what earlier seeds draw."""
    assert set(STRANGERS) <= CLIENT_KINDS.keys()
    for seed in (*range(0, 900_000, 1_777), *range(880_000, 880_100)):
        strangers = set(draw(seed, sorted(CLIENT_KINDS), ()).clients) & set(STRANGERS)
        assert strangers == (set(STRANGERS) if seed in ACCESS_IN else set()), seed


def test_new_seeds_of_each_kind_are_printed_and_a_failed_one_with_the_command_that_replays_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[range] = []

    def run_range(seeds: Iterable[int], _jobs: int | None, reported: Callable[[Range], None]) -> Range:
        assert isinstance(seeds, range)
        ran.append(seeds)
        part = Range(len(seeds), [Failed(seeds[-1], ["a lost update"], "the trace")], attempts=7, committed=5, virtual_s=1.0, cpu_s=1.0)
        reported(part)
        return part

    monkeypatch.setattr(program, "run_range", run_range)
    monkeypatch.setattr(sys, "argv", ["sim", "--new", "--seeds", "10"])
    assert program.main() == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(ran) == len(program.KINDS)
    for seeds, kind in zip(ran, program.KINDS, strict=True):
        assert len(seeds) == 2
        assert seeds[0] in kind
        assert seeds[-1] in kind
        assert f"again: make sim FIRST_SEED={seeds.start} SEEDS=2" in lines
        assert f"replay: make sim SEED={seeds[-1]}" in lines
    first = [each.start for each in ran]
    assert program.main() == 1
    assert [each.start for each in ran[len(first) :]] != first, "other seeds each time"
