"""In which mode a table is filled, from its properties and its identifiers."""

from __future__ import annotations

from typing import get_args

import pytest

from waltz_delta.marks.marks import app_id, epochs_among, merged_app_id
from waltz_delta.tables.mode import Mode, mode_app_id, with_mode, written_as


@pytest.mark.parametrize("mode", get_args(Mode))
def test_the_identifier_of_the_first_commit_says_the_mode_as_the_property_does(mode: Mode) -> None:
    assert written_as(with_mode({}, mode), {}, []) == written_as({}, {mode_app_id(mode): 1}, []) == mode
    assert epochs_among({mode_app_id(mode): 1}) == {}, "it is no mark of a cluster"


def test_the_property_that_a_user_sets_counts_more_than_the_first_commit() -> None:
    assert written_as({"waltz.mode": "append"}, {mode_app_id("upsert"): 1}, []) == "append"


def test_a_table_without_both_shows_its_mode_by_its_marks() -> None:
    assert written_as({}, {}, ["k"]) is None
    assert written_as({}, {app_id("k", 0): 4}, ["k"]) == "append"
    assert written_as({}, {app_id("k", 0): 4, merged_app_id("k"): 1}, ["k"]) == "upsert or history"
