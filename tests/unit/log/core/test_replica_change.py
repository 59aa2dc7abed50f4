"""The rules of changing replicas: one at a time, and never without a majority that can accept appends."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waltz_log.core.metadata import PartitionMetadata, ReplicaState
from waltz_log.core.recovery import majority
from waltz_log.core.replica_change import ReplicaChange, clean_members, next_assignment, risk_of, settled
from waltz_log.errors import InvalidRequest, Unavailable

ABC = ("a", "b", "c")


def _metadata(clean: str, behind: str = "", fresh: str = "") -> PartitionMetadata:
    states = {name: ReplicaState(7, None) for name in clean}
    states |= {name: ReplicaState(6, 50) for name in behind}
    states |= {name: ReplicaState(-1, 90) for name in fresh}
    return PartitionMetadata(1, 7, states)


def test_a_living_replica_is_replaced_by_adding_first_and_removing_when_the_added_one_is_clean() -> None:
    change = ReplicaChange(0, add="d", remove="b")
    assert next_assignment(change, ABC, _metadata("abc"), frozenset("abc")) == ("a", "b", "c", "d")
    assert not settled(("a", "b", "c", "d"), _metadata("abc", fresh="d"), "d")
    with pytest.raises(Unavailable, match="still being filled"):
        next_assignment(change, ("a", "b", "c", "d"), _metadata("abc", fresh="d"), frozenset("abc"))
    assert settled(("a", "b", "c", "d"), _metadata("abcd"), "d")
    assert next_assignment(change, ("a", "b", "c", "d"), _metadata("abcd"), frozenset("abcd")) == ("a", "c", "d")
    assert next_assignment(change, ("a", "c", "d"), _metadata("acd"), frozenset("acd")) is None


def test_a_replica_that_is_gone_is_replaced_in_its_place() -> None:
    change = ReplicaChange(0, add="d", remove="b")
    assert next_assignment(change, ABC, _metadata("abc"), frozenset("ac")) == ("a", "d", "c")


def test_a_change_that_leaves_no_majority_able_to_accept_appends_is_refused() -> None:
    for change, live in (
        (ReplicaChange(0, add="d"), "ab"),  # three of four would be needed
        (ReplicaChange(0, remove="a", force=True), "ab"),  # of b and c only b is there
        (ReplicaChange(0, add="d", remove="c"), "a"),
    ):
        with pytest.raises(Unavailable, match="no majority"):
            next_assignment(change, ABC, _metadata("abc"), frozenset(live))
    with pytest.raises(Unavailable, match="no majority"):
        next_assignment(ReplicaChange(0, remove="a", force=True), ABC, _metadata("ab", behind="c"), frozenset("abc"))


def test_a_partition_with_one_replica_gets_a_second_one_and_a_third() -> None:
    assert next_assignment(ReplicaChange(0, add="b"), ("a",), _metadata("a"), frozenset("a")) == ("a", "b")
    assert next_assignment(ReplicaChange(0, add="c"), ("a", "b"), _metadata("ab"), frozenset("ab")) == ABC
    for change, assigned, live in (
        (ReplicaChange(0, add="b"), ("a",), ""),  # no replica could fill it
        (ReplicaChange(0, add="c"), ("a", "b"), "a"),
    ):
        with pytest.raises(Unavailable, match="no majority"):
            next_assignment(change, assigned, _metadata("ab"), frozenset(live))


@pytest.mark.parametrize(
    ("assigned", "remove", "said"),
    [
        ("abc", "b", "would have 2 replicas, a, c: .* either node is down"),
        ("ab", "b", "would have one replica, a: .* loses acknowledged transactions"),
    ],
)
def test_fewer_than_three_replicas_need_force_and_the_refusal_says_what_is_at_risk(assigned: str, remove: str, said: str) -> None:
    left = tuple(each for each in assigned if each != remove)
    with pytest.raises(InvalidRequest, match=said + ".*--force"):
        next_assignment(ReplicaChange(0, remove=remove), tuple(assigned), _metadata(assigned), frozenset(assigned))
    assert next_assignment(ReplicaChange(0, remove=remove, force=True), tuple(assigned), _metadata(assigned), frozenset(assigned)) == left
    assert risk_of(0, ("a", "b", "c", "d"), ABC, _metadata("abcd")) is None


def test_a_replica_that_was_never_filled_is_removed_without_force() -> None:
    assert next_assignment(ReplicaChange(0, remove="b"), ("a", "b"), _metadata("a"), frozenset("a")) == ("a",)
    assert next_assignment(ReplicaChange(0, remove="b"), ("a", "b"), _metadata("a", fresh="b"), frozenset("a")) == ("a",)


def test_the_next_change_waits_until_what_was_added_is_clean() -> None:
    with pytest.raises(Unavailable, match="filling=d"):
        next_assignment(ReplicaChange(0, add="e"), ("a", "b", "c", "d"), _metadata("abc", fresh="d"), frozenset("abc"))
    with pytest.raises(Unavailable, match="filling=d"):
        next_assignment(ReplicaChange(0, remove="a"), ("a", "b", "c", "d"), _metadata("abc"), frozenset("abc"))
    # what was added by mistake may be removed again before that
    assert next_assignment(ReplicaChange(0, remove="d"), ("a", "b", "c", "d"), _metadata("abc", fresh="d"), frozenset("abc")) == ABC


def test_impossible_requests_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="not a replica"):
        next_assignment(ReplicaChange(0, remove="x"), ABC, _metadata("abc"), frozenset("abc"))
    with pytest.raises(InvalidRequest, match="not a replica"):
        next_assignment(ReplicaChange(0, add="d", remove="x"), ABC, _metadata("abc"), frozenset("abc"))
    with pytest.raises(InvalidRequest, match="last replica"):
        next_assignment(ReplicaChange(0, remove="a"), ("a",), _metadata("a"), frozenset("a"))
    with pytest.raises(InvalidRequest):
        ReplicaChange(0)
    with pytest.raises(InvalidRequest):
        ReplicaChange(0, add="a", remove="a")


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from("abcdef"), unique=True, min_size=1),
    st.dictionaries(st.sampled_from("abcdef"), st.sampled_from(["clean", "behind", "fresh"])),
    st.sets(st.sampled_from("abcdef")),
    st.sampled_from([None, *"abcdef"]),
    st.sampled_from([None, *"abcdef"]),
)
def test_every_step_changes_one_replica_and_keeps_a_majority_of_old_and_new_that_know_everything(
    assigned: list[str], known: dict[str, str], live: set[str], add: str | None, remove: str | None
) -> None:
    states = {"clean": ReplicaState(7, None), "behind": ReplicaState(6, 50), "fresh": ReplicaState(-1, 90)}
    metadata = PartitionMetadata(1, 7, {name: states[kind] for name, kind in known.items()})
    try:
        wanted = next_assignment(ReplicaChange(0, add, remove, force=True), tuple(assigned), metadata, frozenset(live))
    except (InvalidRequest, Unavailable):
        return
    if wanted is None:
        assert add is None or add in assigned
        assert remove is None or remove not in assigned
        return
    gained, gone = set(wanted) - set(assigned), set(assigned) - set(wanted)
    assert len(wanted) == len(set(wanted))
    assert gained | gone
    assert gained <= {add}
    assert gone <= {remove}
    knowing = set(wanted) & live & clean_members(metadata)
    # The owner goes on over a second replica only when that one is filled; the first one knows everything until then.
    assert len(knowing) >= min(majority(len(wanted)), len(assigned))
