"""The 22 recovery tables of the original, the rules that are stricter, and the vote against the dumbest correct version of it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz_log.core.metadata import PartitionMetadata, ReplicaState
from waltz_log.core.recovery import (
    ReplicaReport,
    classify,
    closed_at,
    closed_metadata,
    committed_mark,
    decided_metadata,
    majority,
    next_metadata,
    opening_replicas,
    resolve,
)

U = None


@dataclass(frozen=True)
class Table:
    """One row of the original's table: metadata sessions and closing marks, then what the storages hold, who is assigned and present."""

    name: str
    recorded: tuple[tuple[int, int | None], ...]
    storage_session: tuple[int, ...]
    low_water_mark: tuple[int, ...]
    last: tuple[int, ...]
    expect: tuple[int, int]
    down: tuple[int, ...] = ()
    removed: tuple[int, ...] = ()


def _five(first: int, second: int, count: int) -> tuple[int, ...]:
    return (first,) * count + (second,) * (5 - count)


TABLES = [
    Table("basic2", ((998, U),) * 5, (998,) * 5, (110,) * 5, (125, 125, 120, 115, 115), (120, 125)),
    Table("basic3", ((998, U),) * 3 + ((997, 100),) * 2, (998,) * 5, (110,) * 5, (125, 125, 120, 115, 115), (120, 125)),
    Table(
        "basic4",
        ((998, U), (998, U), (998, 110), (997, 110), (997, 110)),
        _five(998, 997, 3),
        _five(110, 100, 3),
        (120, 120, 120, 105, 105),
        (120, 120),
    ),
    Table(
        "basic5",
        ((998, U), (998, 110), (998, 110), (997, 100), (997, 100)),
        _five(998, 997, 3),
        _five(110, 100, 3),
        (120, 120, 120, 105, 105),
        (120, 120),
    ),
    Table(
        "basic6",
        ((998, U), (998, 110), (998, 110), (997, 100), (997, 100)),
        _five(998, 997, 3),
        _five(110, 100, 3),
        (120, 120, 130, 105, 105),
        (120, 120),
    ),
    Table(
        "after failure 1",
        ((998, U),) * 2 + ((997, 120),) * 3,
        _five(998, 997, 2),
        _five(120, 100, 2),
        (120, 120, 105, 105, 105),
        (120, 120),
    ),
    Table(
        "after failure 2",
        ((998, U), (998, U), (997, 120), (996, 100), (996, 100)),
        (998, 998, 997, 996, 996),
        _five(120, 100, 2),
        (120, 120, 105, 105, 105),
        (120, 120),
    ),
    Table("catch up", ((998, U),) * 5, (998,) * 5, (120,) * 5, (120, 120, 120, 110, 100), (120, 120), down=(0, 1)),
    Table(
        "inconsistent 1",
        ((998, U),) * 3 + ((997, 100),) * 2,
        (998, 998, 997, 997, 997),
        _five(110, 100, 2),
        (125, 120, 115, 115, 115),
        (120, 125),
    ),
    Table(
        "inconsistent 2",
        ((998, U),) * 3 + ((997, 100),) * 2,
        (998, 998, 997, 997, 997),
        _five(110, 100, 2),
        (125, 120, 130, 115, 115),
        (120, 125),
    ),
    Table(
        "unavailable 1",
        ((998, U),) * 3 + ((997, 100),) * 2,
        _five(998, 997, 3),
        _five(110, 100, 3),
        (120, 120, 120, 115, 115),
        (120, 120),
        down=(2,),
    ),
    Table(
        "unavailable 2",
        ((998, U),) * 3 + ((997, 100),) * 2,
        _five(998, 997, 3),
        _five(110, 100, 3),
        (120, 120, 120, 115, 115),
        (120, 120),
        down=(2, 3),
    ),
    Table("unavailable 3", ((998, U),) * 5, (998,) * 5, (110,) * 5, (120, 120, 115, 115, 110), (120, 120), down=(0, 4)),
    Table("unavailable 4", ((998, U),) * 5, (998,) * 5, (110,) * 5, (120, 120, 120, 115, 115), (120, 120), down=(0, 1)),
    Table("added 1", ((998, U), (998, U), (997, 100)), (998, 998, 997, 997), (110, 110, 100, 100), (120, 120, 115, 115), (120, 120)),
    Table(
        "added 2",
        ((998, U), (998, U), (997, 100)),
        (998, 998, 997, 997, 997),
        (110, 110, 100, 100, 100),
        (120, 120, 115, 115, 115),
        (120, 120),
    ),
    Table(
        "added 3",
        ((998, U), (998, U), (997, 100)),
        (998, 998, 997, 997, 997),
        (110, 110, 100, 100, 100),
        (120, 120, 115, 115, 115),
        (120, 120),
        down=(0,),
    ),
    Table("removed 1", ((998, U), (998, U), (997, 100)), (998, 998, 997), (110, 110, 100), (120, 120, 115), (120, 120), removed=(0,)),
    Table(
        "removed 2",
        ((998, U),) * 3 + ((997, 100),) * 2,
        _five(998, 997, 3),
        _five(110, 100, 3),
        (120, 120, 120, 115, 115),
        (120, 120),
        removed=(0, 1),
    ),
    Table(
        "replaced",
        ((998, U), (998, U), (997, U)),
        (998, 998, 997, 997),
        (110, 110, 100, 100),
        (120, 120, 115, 115),
        (120, 120),
        removed=(0,),
    ),
]


def _recover(table: Table, order: list[str]) -> tuple[int | None, dict[str, int]]:
    """Classify, vote, and copy from the nearest ahead until it is decided, replicas arriving in `order`: the shell's procedure in small.
    The original counts a restored replica as present; the two 'inconsistent' tables have one, and the stricter rule must still decide them."""
    names = [f"r{index}" for index in range(len(table.storage_session))]
    recorded = {name: ReplicaState(*state) for name, state in zip(names, table.recorded, strict=False)}
    levels: dict[str, int] = {}
    voters: list[str] = []
    absent: set[str] = set()
    for name in order:
        index = names.index(name)
        report = ReplicaReport(table.storage_session[index], table.low_water_mark[index], table.last[index])
        found = classify(recorded.get(name), report)
        levels[name] = report.last_transaction_id if found.truncate_to is None else found.truncate_to
        if found.votes:
            voters.append(name)
        if found.counts_absent:
            absent.add(name)
    while True:
        mark = resolve({name: level for name, level in levels.items() if name not in absent}, voters, recorded)
        if mark is not None:
            return mark, levels
        behind = [name for name in order if any(other > levels[name] for other in levels.values())]
        if not behind:
            return None, levels
        name = behind[0]
        levels[name] = min(level for level in levels.values() if level > levels[name])


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
@pytest.mark.parametrize("reverse", [False, True])
def test_the_originals_tables_resolve_to_their_mark(table: Table, reverse: bool) -> None:
    names = [f"r{index}" for index in range(len(table.storage_session)) if index not in table.down + table.removed]
    mark, _ = _recover(table, names[::-1] if reverse else names)
    assert mark is not None
    assert table.expect[0] <= mark <= table.expect[1]


def test_a_restored_replica_counts_as_absent_and_nothing_acknowledged_is_lost() -> None:
    """A (restored, last 100) and B (115) are there, C (120) is down; A and C had acknowledged 116..120. The original resolves 115."""
    recorded = {name: ReplicaState(998, None) for name in "ABC"}
    restored = classify(recorded["A"], ReplicaReport(997, 90, 100))
    assert restored == classify(recorded["A"], ReplicaReport(997, 90, 95))
    assert restored.counts_absent
    assert restored.truncate_to == 90
    assert not restored.votes
    # counted as absent, the mark stays undecided until C is back ...
    assert resolve({"B": 115}, ["B"], recorded) is None
    assert resolve({"B": 115, "C": 120}, ["B", "C"], recorded) is None
    # ... and B has copied from it
    assert resolve({"B": 120, "C": 120}, ["B", "C"], recorded) == 120
    # the planted bug: counted as present, the acknowledged transactions above 115 would be given up
    assert resolve({"A": 115, "B": 115}, ["B"], recorded) == 115


def test_an_unknown_replica_is_truncated_to_its_own_low_water_mark_and_does_not_vote() -> None:
    found = classify(None, ReplicaReport(5, 10, 30))
    assert (found.truncate_to, found.votes, found.counts_absent) == (10, False, False)


def test_a_replica_outside_the_last_session_is_truncated_to_its_closing_mark() -> None:
    assert classify(ReplicaState(7, 20), ReplicaReport(7, 10, 30)).truncate_to == 20
    assert classify(ReplicaState(7, 20), ReplicaReport(7, 10, 15)).truncate_to is None


def test_a_replica_that_a_session_made_clean_before_it_could_record_it_keeps_what_that_session_resolved() -> None:
    """Recorded as closed at 20; session 8 resolved 25, the replica copied up to it and was marked, and the owner died. What it holds up to 25 made it
    a majority's."""
    assert classify(ReplicaState(6, 20), ReplicaReport(8, 25, 25)).truncate_to is None
    assert classify(ReplicaState(6, 20), ReplicaReport(8, 25, 27)).truncate_to == 25


def test_a_replica_that_was_removed_and_assigned_again_while_it_was_away_is_cut_to_what_it_knows_to_be_clean() -> None:
    """It was a member of session 2, which closed at 104 without it; then it was removed, and that was forgotten. Assigned again it was recorded as
    one of which nothing is known, with the mark of that day, 137. What it holds from 105 to 112 others know differently."""
    found = classify(ReplicaState(-1, 137), ReplicaReport(2, 43, 112))
    assert (found.truncate_to, found.votes, found.counts_absent) == (43, False, False)
    assert classify(ReplicaState(-1, 137), ReplicaReport(-1, -1, -1)).truncate_to is None


def test_a_replica_that_never_caught_up_in_its_session_does_not_vote() -> None:
    assert not classify(ReplicaState(7, None), ReplicaReport(7, 10, 5)).votes
    assert classify(ReplicaState(7, None), ReplicaReport(7, 10, 10)).votes


def test_metadata_names_clean_replicas_in_the_new_session_and_closes_the_others() -> None:
    current = PartitionMetadata(
        3, 9, {"a": ReplicaState(8, None), "b": ReplicaState(8, None), "c": ReplicaState(7, 50), "gone": ReplicaState(8, None)}
    )
    after = next_metadata(current, ["a", "b", "c", "new"], ["a"], 120)
    assert after.replicas == {
        "a": ReplicaState(9, None),
        "b": ReplicaState(8, 120),
        "c": ReplicaState(7, 50),
        "new": ReplicaState(-1, 120),
    }
    # a replica that became clean earlier in this session stays so when another one joins
    assert next_metadata(after, ["a", "b"], ["b"], 120).replicas == {"a": ReplicaState(9, None), "b": ReplicaState(9, None)}


def _dumbest_resolve(levels: dict[str, int], old: list[str]) -> int | None:
    """All voters: the highest level every possible majority of the old replicas could still agree on being committed, by trying what the absent
    ones may hold."""
    absent = [name for name in old if name not in levels]
    quorum = majority(len(old))
    for level in sorted(set(levels.values()), reverse=True):
        now = sum(1 for own in levels.values() if own >= level)
        if now >= quorum:
            return level
        for count in range(len(absent) + 1):
            for _ in combinations(absent, count):
                if now + count >= quorum:
                    return None
    return None


@given(st.dictionaries(st.sampled_from("abcde"), st.integers(0, 6)), st.integers(3, 5))
def test_the_vote_equals_the_dumbest_correct_one(levels: dict[str, int], size: int) -> None:
    old = list("abcde")[:size]
    present = {name: level for name, level in levels.items() if name in old}
    assert resolve(present, list(present), old) == _dumbest_resolve(present, old)


@given(st.lists(st.integers(0, 8), min_size=3, max_size=5), st.data())
def test_what_a_majority_acknowledged_is_kept_with_any_replica_absent(levels: list[int], data: st.DataObject) -> None:
    names = [f"r{index}" for index in range(len(levels))]
    committed = sorted(levels, reverse=True)[majority(len(levels)) - 1]
    present = data.draw(st.lists(st.sampled_from(names), unique=True))
    mark = resolve({name: levels[names.index(name)] for name in present}, present, names)
    if mark is not None:
        assert mark >= committed


def test_a_block_is_committed_by_a_majority_of_the_assigned() -> None:
    assert committed_mark({"a": 5}, 3) is None
    assert committed_mark({"a": 5, "b": 3}, 3) == 3
    assert committed_mark({"a": 5, "b": 3, "c": 9}, 3) == 5
    assert committed_mark({"a": 5, "b": 3, "c": 9}, 5) == 3


def test_a_session_that_ended_in_order_is_closed_only_for_replicas_that_hold_all_of_it() -> None:
    open_session = PartitionMetadata(
        3, 9, {"a": ReplicaState(9, None), "b": ReplicaState(9, None), "lags": ReplicaState(9, None), "away": ReplicaState(8, 70)}
    )
    assert closed_at(open_session) is None
    closed = closed_metadata(open_session, ["a", "b", "away"], 120)
    assert closed.replicas == {
        "a": ReplicaState(9, 120),
        "b": ReplicaState(9, 120),
        "lags": ReplicaState(9, None),
        "away": ReplicaState(8, 70),
    }
    assert closed_at(closed) == 120
    assert opening_replicas(open_session, ("new", "newer")) == tuple(sorted(open_session.replicas)), "what must be voted is for those who were there"
    assert opening_replicas(closed, ("a", "b", "new")) == ("a", "b", "new")
    assert opening_replicas(closed, ("a", "new", "newer")) == tuple(sorted(closed.replicas)), "too few of them hold what was committed"
    assert opening_replicas(closed, ("b", "away", "lags")) == tuple(sorted(closed.replicas)), "what one that was away holds is not known"
    assert opening_replicas(PartitionMetadata(1, 0, {}), ("new", "newer")) == ("new", "newer")
    # a session begun since that recorded no replica changes nothing ...
    assert closed_at(PartitionMetadata(4, 10, closed.replicas)) == 120
    # ... and one that did is open again, whatever is in the states of older ones
    assert closed_at(next_metadata(PartitionMetadata(4, 10, closed.replicas), closed.replicas, ["a", "lags"], 120)) is None


def test_a_mark_that_was_decided_is_found_by_the_next_session_and_voted_no_more() -> None:
    old = {"a": ReplicaState(2, None), "b": ReplicaState(2, None), "c": ReplicaState(1, -1)}
    begun = PartitionMetadata(3, 3, old)
    decided = decided_metadata(begun, ["a", "c", "new"], 37)
    assert decided.replicas == {"a": ReplicaState(2, 37), "b": ReplicaState(2, None), "c": ReplicaState(1, 37)}
    assert (decided.generation, decided.session) == (3, 3)
    assert closed_at(decided) == 37
    # the next session, begun with other replicas present: nothing is decided again
    again = PartitionMetadata(4, 4, decided.replicas)
    assert decided_metadata(again, ["b"], 27) == again
    assert opening_replicas(again, ("a", "b", "new")) == ("a", "b", "c")
    assert next_metadata(again, ["a", "b", "c"], ["b", "c"], 37).replicas == {
        "a": ReplicaState(2, 37),
        "b": ReplicaState(4, None),
        "c": ReplicaState(4, None),
    }


def test_nothing_is_decided_of_a_session_that_has_members() -> None:
    """A replica that comes late knows the mark the session began with, above which much may be committed."""
    open_session = PartitionMetadata(3, 4, {"a": ReplicaState(4, None), "b": ReplicaState(4, None), "late": ReplicaState(3, 180)})
    assert decided_metadata(open_session, ["a", "b", "late"], 180) == open_session
    first = PartitionMetadata(1, 1, {})
    assert decided_metadata(first, ["a", "b"], -1) == first


def test_the_recorded_decision_about_an_older_session_does_not_count_as_a_closing_mark() -> None:
    current = PartitionMetadata(3, 9, {"a": ReplicaState(8, None), "b": ReplicaState(8, None), "c": ReplicaState(7, 50)})
    assert closed_at(next_metadata(current, ["a", "b", "c", "new"], ["a", "b"], 120)) is None
    assert closed_at(PartitionMetadata(0, 0, {})) is None
    assert closed_at(PartitionMetadata(0, 1, {"a": ReplicaState(-1, -1)})) is None
