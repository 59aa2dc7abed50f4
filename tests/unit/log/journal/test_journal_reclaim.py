"""Which files may go: the original's matrices, and every small case against trying all sets of files."""

from __future__ import annotations

from itertools import chain, combinations, product
from random import Random

import pytest

from tests.unit.log.journal.reclaim_cases import RECLAIM_CASES, Row
from waltz_log.journal.record_ledger import reclaimable


@pytest.mark.parametrize(("rows", "expected"), RECLAIM_CASES.values(), ids=RECLAIM_CASES)
def test_the_matrices_of_the_original(rows: tuple[Row, ...], expected: tuple[bool, ...]) -> None:
    cancelled = [sum(row[file + 1] for row in rows[file:] if len(row) > file + 1) for file in range(len(rows))]
    living = [row[0] - cancelled[file] for file, row in enumerate(rows)]
    outlives = [[other for other, count in enumerate(row[1:]) if count and other != file] for file, row in enumerate(rows)]
    assert tuple(reclaimable(living, outlives)) == expected


def _largest_that_can_go(living: list[int], outlives: list[tuple[int, ...]]) -> set[int]:
    """By trying: a set can go where nothing lives in it and nothing of it must outlive a file that stays. Two such sets together are one."""
    files = range(len(living))
    going: set[int] = set()
    for chosen in chain.from_iterable(combinations(files, count) for count in range(len(living) + 1)):
        if all(living[file] <= 0 and set(outlives[file]) <= set(chosen) for file in chosen):
            going |= set(chosen)
    return going


def test_the_largest_possible_set_of_segments_is_trimmed() -> None:
    older: list[list[tuple[int, ...]]] = [[()], [(), (0,)], [(), (0,), (1,), (0, 1)], [(), (0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)]]
    tried = 0
    for files in range(1, 5):
        for living in product((0, 1), repeat=files):
            for outlives in product(*older[:files]):
                can = reclaimable(living, outlives)
                assert {file for file, go in enumerate(can) if go} == _largest_that_can_go(list(living), list(outlives))
                tried += 1
    assert tried > 1000


def test_larger_rings_lose_what_they_can_and_nothing_else() -> None:
    random = Random(7)
    for _ in range(200):
        files = random.randrange(5, 9)
        living = [random.choice((0, 0, 0, 1)) for _ in range(files)]
        outlives = [tuple(older for older in range(file) if random.random() < 0.25) for file in range(files)]
        can = reclaimable(living, outlives)
        assert {file for file, go in enumerate(can) if go} == _largest_that_can_go(living, outlives)


def test_an_empty_ring_has_nothing_to_lose() -> None:
    assert reclaimable([], []) == []
