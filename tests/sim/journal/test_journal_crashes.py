"""Every crash of short lives: the machine dies before each operation of the disk, with each fate of each write that was not synced, torn at any byte,
and again while the journal opens."""

from __future__ import annotations

from functools import partial

import pytest

from tests.unit.log.journal.scenarios import LIVES, JournalScenario, Life, check_survivor, updates_replace_each_other
from verification.crashes.crashes import Effort, enumerate_crashes

REPLAY = "pytest tests/sim/journal/test_journal_crashes.py"
EVERYTHING = Effort(f"{REPLAY} -m slow", subsets_of=7, drawn=24, torn_every=1, recovery_every=200)
QUICK = Effort(REPLAY, subsets_of=3, drawn=3, torn_every=67, recovery_every=150)


@pytest.mark.parametrize("life", LIVES, ids=lambda life: life.__name__)
async def test_no_crash_loses_what_was_synced_or_leaves_a_part(life: Life) -> None:
    tally = await enumerate_crashes(life.__name__, lambda: JournalScenario(life), check_survivor, QUICK)
    assert tally.checked > 50
    assert tally.points > 20


async def test_no_crash_loses_the_last_update_or_brings_back_one_that_it_replaced() -> None:
    both = frozenset({1, 2})
    scenario = partial(JournalScenario, updates_replace_each_other, replaceable_types=both)
    tally = await enumerate_crashes("updates_replace_each_other", scenario, partial(check_survivor, replaceable=both), QUICK)
    assert tally.checked > 50


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("life", LIVES, ids=lambda life: life.__name__)
async def test_no_crash_at_any_byte_does(life: Life) -> None:
    tally = await enumerate_crashes(life.__name__, lambda: JournalScenario(life), check_survivor, EVERYTHING)
    assert tally.recoveries > 0
