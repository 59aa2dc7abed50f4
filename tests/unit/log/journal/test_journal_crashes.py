"""Every crash of short lives: the machine dies before each operation of the disk, with each fate of each write that was not synced, torn at any byte,
and again while the journal opens."""

from __future__ import annotations

import pytest

from tests.unit.log.journal.scenarios import LIVES, JournalScenario, Life, check_survivor
from waltz_log.testing.crashes import Effort, enumerate_crashes

REPLAY = "pytest tests/unit/log/journal/test_journal_crashes.py"
EVERYTHING = Effort(f"{REPLAY} -m slow", subsets_of=7, drawn=24, torn_every=1, recovery_every=200)
QUICK = Effort(REPLAY, subsets_of=3, drawn=3, torn_every=67, recovery_every=150)


@pytest.mark.parametrize("life", LIVES, ids=lambda life: life.__name__)
async def test_no_crash_loses_what_was_synced_or_leaves_a_part(life: Life) -> None:
    tally = await enumerate_crashes(life.__name__, lambda: JournalScenario(life), check_survivor, QUICK)
    assert tally.checked > 50
    assert tally.points > 20


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("life", LIVES, ids=lambda life: life.__name__)
async def test_no_crash_at_any_byte_does(life: Life) -> None:
    tally = await enumerate_crashes(life.__name__, lambda: JournalScenario(life), check_survivor, EVERYTHING)
    assert tally.recoveries > 0
