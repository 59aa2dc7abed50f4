"""Every parser of core and storage on any bytes and on damaged valid ones; `make fuzz` searches further (verification/fuzz/parser_targets.py)."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from verification.fuzz import parser_targets
from verification.fuzz.fuzz import main
from verification.fuzz.parser_targets import SEEDS, TARGETS
from waltz_log.core.formats import records

KEPT = Path(__file__).parents[4] / "fuzz"

SLOW_TARGETS = {"settings": 40, "directory": 60}

SHARES = [4, pytest.param(1, marks=pytest.mark.long)]
"""A fourth of the examples at each run of the tests, all of them in `make test-long`."""


@st.composite
def damaged(draw: st.DrawFn, seeds: list[bytes]) -> bytes:
    """A valid input with some of its bytes changed, repeated, left out or cut off."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(0, 4))):
        place = draw(st.integers(0, len(data)))
        what = draw(st.sampled_from(["bit", "number", "out", "again", "cut"]))
        if what == "bit" and place < len(data):
            data[place] ^= 1 << draw(st.integers(0, 7))
        elif what == "number":
            data[place : place + 4] = draw(st.sampled_from([b"\xff" * 4, b"\x7f" + b"\xff" * 3, b"\x80" + bytes(3), bytes(4)]))
        elif what == "out":
            del data[place : place + draw(st.integers(1, 40))]
        elif what == "again":
            data[place:place] = data[: draw(st.integers(0, 80))]
        else:
            del data[place:]
    return bytes(data)


@pytest.mark.parametrize("share", SHARES, ids=["a fourth", "all"])
@pytest.mark.parametrize("name", TARGETS)
def test_a_parser_accepts_or_refuses_any_bytes(name: str, share: int) -> None:
    @settings(max_examples=SLOW_TARGETS.get(name, 100) // share, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.one_of(damaged(SEEDS[name]), st.binary(max_size=200)))
    @example(b"")
    def accepts(data: bytes) -> None:
        TARGETS[name](data)

    accepts()


@pytest.mark.parametrize("name", TARGETS)
def test_a_parser_accepts_or_refuses_what_once_broke_it(name: str) -> None:
    for data in [*SEEDS[name], *(path.read_bytes() for path in sorted((KEPT / name).glob("*")))]:
        TARGETS[name](data)


def test_kept_state_belongs_to_a_target() -> None:
    assert {path.name for path in KEPT.iterdir()} <= set(TARGETS)
    assert set(SEEDS) == set(TARGETS)


def test_a_parser_that_accepts_a_wrong_checksum_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    seed = SEEDS["record"][1]
    wrong = seed[:-1] + bytes([seed[-1] ^ 1])
    parser_targets.record(wrong)
    monkeypatch.setattr(records, "crc32", lambda data, start=0: int.from_bytes(wrong[32:36] if not start else wrong[-4:], "big"))
    with pytest.raises(AssertionError):
        parser_targets.record(wrong)


def test_the_fuzzer_refuses_a_target_that_there_is_not() -> None:
    if importlib.util.find_spec("atheris") is None:
        assert main(["nothing"]) == 1
    else:
        with pytest.raises(SystemExit):
            main(["nothing"])
