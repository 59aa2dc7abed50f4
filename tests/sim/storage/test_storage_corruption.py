"""Flipped bits in every kind of file of a storage node: refused, healed or harmless, never served (verification/crashes/storage_corruption.py)."""

from __future__ import annotations

from random import Random

import pytest

from verification.crashes.storage_corruption import KINDS, PADDING, CorruptionFound, bits, flip, flips, main, sound
from verification.crashes.storage_model import silent_logs
from waltz_log.testing.disk import SimulatedDisk

ALLOWED = {
    "control": {"refused", "healed", "rolled back", "outvoted", "padding"},
    "fence": {"refused", "healed", "outvoted", "padding"},
    "seg": {"refused", "padding"},
    "idx": {"refused", "healed", "padding"},
    "tix": {"fell back", "healed", "padding"},
    "tail": {"healed"},
}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_flipped_bit_is_refused_or_healed_or_harmless(kind: str) -> None:
    outcomes = await flips(kind, 400)
    assert outcomes.total() == 400
    assert set(outcomes) <= ALLOWED[kind], outcomes
    assert outcomes["padding"] < 200, "most bytes mean something"


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
async def test_ten_thousand_flipped_bits_are_refused_or_healed_or_harmless(kind: str) -> None:
    outcomes = await flips(kind, 10_000, seed=2)
    assert outcomes.total() == 10_000
    assert set(outcomes) <= ALLOWED[kind], outcomes


async def test_padding_is_exactly_what_no_reader_checks() -> None:
    """Every single byte of the headers: where `PADDING` claims that no reader checks, all eight bits are indeed served as sound."""
    with silent_logs():
        before = await sound()
        for kind, path in (("control", "waltz-storage.ctl"), ("fence", "waltz-storage.fence"), ("seg", before.paths("seg")[1])):
            for offset in range(128):
                outcome = await flip(before, kind, path, 8 * offset + offset % 8)
                assert (outcome == "padding") == PADDING[kind](offset), f"byte {offset} of {path}: {outcome}"


async def test_an_unnoticed_bit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PADDING, "seg", lambda offset: False)
    with silent_logs(), pytest.raises(CorruptionFound, match="no check noticed"):
        before = await sound()
        await flip(before, "seg", before.paths("seg")[0], 8 * 100)


async def test_every_file_of_a_kind_is_flipped_in() -> None:
    with silent_logs():
        before = await sound()
    for kind in ("seg", "idx", "tix"):
        flipped = {path for path, _ in bits(before, kind, 2000, Random(1))}
        assert flipped == set(before.paths(kind))
        assert len(flipped) >= 3
    assert isinstance(before.disk, SimulatedDisk)


def test_the_command_says_what_came_of_the_flips(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["seg", "--count", "20"]) == 0
    assert capsys.readouterr().out.startswith("seg          20 flips: ")
