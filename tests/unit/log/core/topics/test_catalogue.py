"""The rules of the catalogue of topics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz_log.core.topics import catalogue as module
from waltz_log.core.topics.catalogue import FLUSH_BYTES_MAX, HOUR_MS, Catalogue, Policies, Topic, TopicType
from waltz_log.core.topics.topic_names import TopicName
from waltz_log.errors import InvalidRequest, InvalidSetting, NoSuchTopic

ORDERS = TopicName("shop", "orders")
SEATS = TopicName("air-line", "seats")


def made(
    found: Catalogue, name: TopicName, partitions: int = 2, *, type: TopicType = "regular", pool: int = 8, **more: Any
) -> tuple[Catalogue, Topic]:
    return found.with_new(name, type=type, partitions=partitions, pool=range(pool), now_ms=more.pop("now_ms", 5), **more)


def test_topics_get_log_partitions_that_no_topic_has() -> None:
    found, orders = made(Catalogue(), ORDERS, 3)
    found, seats = made(found, SEATS, 4)
    assert (orders.partitions, seats.partitions) == ((0, 1, 2), (3, 4, 5, 6))
    assert orders.log_partition(2) == 2
    for partition in (-1, 3):
        with pytest.raises(InvalidRequest, match="partitions 0 to 2"):
            orders.log_partition(partition)


def test_more_partitions_than_are_free_are_refused() -> None:
    found, _ = made(Catalogue(), ORDERS, 6)
    with pytest.raises(InvalidRequest, match="the topic needs 3 log partitions and 2 are free"):
        made(found, SEATS, 3)
    made(found, SEATS, 3, pool=9)


def test_the_same_topic_again_is_the_one_there_is() -> None:
    found, orders = made(Catalogue(), ORDERS, properties={"owner": "shop"})
    assert made(found, ORDERS, properties={"owner": "shop"}, now_ms=99) == (found, orders)


@pytest.mark.parametrize(
    "other",
    [{"partitions": 3}, {"type": "compaction"}, {"keyed": True}, {"properties": {"a": "b"}}, {"policies": Policies(retention_ms=-1)}],
)
def test_another_topic_of_the_same_name_is_refused(other: Mapping[str, Any]) -> None:
    found, _ = made(Catalogue(), ORDERS)
    with pytest.raises(InvalidRequest, match="another topic of that name: type=regular partitions=2"):
        made(found, ORDERS, **other)


def test_two_names_with_one_id_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = made(Catalogue(), ORDERS)
    monkeypatch.setattr(module, "name_id", lambda name: len(name))
    with pytest.raises(InvalidRequest, match="seller has the same id as orders"):
        made(found, TopicName("shop", "seller"))
    with pytest.raises(InvalidRequest, match="shed has the same id as shop"):
        made(found, TopicName("shed", "other-topic"))
    made(found, TopicName("shop", "another"))


def test_a_deleted_topics_log_partitions_are_used_again_once_they_are_released() -> None:
    found, _ = made(Catalogue(), ORDERS, 3)
    found, _ = found.without(ORDERS)
    found, seats = made(found, SEATS, 2)
    assert seats.partitions == (3, 4)
    assert found.retired == (0, 1, 2)
    with pytest.raises(NoSuchTopic, match="no such topic"):
        found.without(ORDERS)
    with pytest.raises(InvalidRequest, match="log partition 1 still holds data of a deleted topic"):
        made(found, ORDERS, 1, log_partitions=(1,))
    found = found.released(1)
    assert found.retired == (0, 2)
    assert found.released(1) is found
    found, again = made(found, ORDERS, 1)
    assert (again.partitions, again.epoch) == ((1,), 3)
    assert Catalogue.from_bytes(found.to_bytes()) == found


def test_a_pending_topic_has_its_log_partitions_and_cannot_be_opened() -> None:
    about = {"type": "regular", "partitions": 2, "pool": range(8), "now_ms": 5}
    found, orders = Catalogue().reserved(ORDERS, **about)
    assert found.topics == {}
    assert found.being_judged() == {0: orders, 1: orders}
    assert Catalogue.from_bytes(found.to_bytes()) == found
    found, seats = made(found, SEATS)
    assert seats.partitions == (2, 3)
    with pytest.raises(NoSuchTopic):
        found.find(ORDERS)
    with pytest.raises(InvalidRequest, match="belongs to topic shop/orders"):
        made(found, TopicName("x", "y"), 1, log_partitions=(1,))
    again, newer = found.reserved(ORDERS, **about)
    with pytest.raises(InvalidRequest, match="at the same time"):
        again.activated(orders, (0, 0))
    assert again.withdrawn(orders) == (again, orders)
    done, topic = again.activated(newer, (7, 0))
    assert (topic.partitions, topic.begins_at, topic.begin_of(0), topic.begin_of(1)) == ((0, 1), (7, 0), 7, 0)
    assert done.pending == {}
    assert Catalogue.from_bytes(done.to_bytes()) == done
    assert again.without(ORDERS)[0].pending == {}
    assert again.without(ORDERS)[0].retired == ()


def test_a_catalogue_that_was_written_before_is_read() -> None:
    rows = '[["shop/orders","regular",[0,1],true,{},{"retention_ms":-1},5]]'
    found = Catalogue.from_bytes(f'{{"topics":{rows},"retired":[4]}}'.encode())
    topic = found.find(ORDERS)
    assert (topic.epoch, topic.begin_of(1), topic.keeps_existing) == (0, 0, False)
    assert (found.retired, found.pending, found.epochs) == ((4,), {}, 0)
    assert Catalogue.from_bytes(found.to_bytes()) == found


def test_an_unknown_topic_is_refused_with_the_nearest() -> None:
    found, orders = made(Catalogue(), ORDERS)
    with pytest.raises(NoSuchTopic, match="shop/orders"):
        found.find(TopicName("shop", "order"))
    assert found.find(ORDERS) is orders


def test_a_compaction_topic_is_keyed() -> None:
    assert made(Catalogue(), ORDERS, type="compaction")[1].keyed


def test_policies_change_and_nothing_else() -> None:
    found, orders = made(Catalogue(), ORDERS)
    found, changed = found.with_policies(ORDERS, {"retention_bytes": 1 << 30, "durability": "quorum_memory"})
    assert (changed.policies.retention_bytes, changed.policies.durability, changed.partitions) == (1 << 30, "quorum_memory", orders.partitions)
    with pytest.raises(InvalidSetting, match="retention_ms"):
        found.with_policies(ORDERS, {"retention": 1})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention_ms", HOUR_MS - 1),
        ("retention_ms", 0),
        ("retention_ms", "168h"),
        ("retention_bytes", -2),
        ("flush_period_ms", 1),
        ("flush_period_ms", HOUR_MS + 1),
        ("flush_bytes", 0),
        ("flush_bytes", FLUSH_BYTES_MAX + 1),
        ("tombstone_retention_ms", -1),
        ("keep_for_subscribers", 1),
        ("durability", "none"),
        ("retention_ms", True),
    ],
)
def test_a_policy_that_cannot_be_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(InvalidSetting, match=name):
        Policies().changed({name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [("retention_ms", HOUR_MS + 59 * 60_000), ("retention_ms", -1), ("flush_period_ms", 2), ("flush_bytes", FLUSH_BYTES_MAX), ("retention_bytes", 0)],
)
def test_the_limits_of_policies_are_accepted(name: str, value: int) -> None:
    assert getattr(Policies().changed({name: value}), name) == value


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 4), st.booleans()), max_size=12))
def test_whatever_is_made_and_deleted_no_log_partition_has_two_topics_and_the_bytes_report_all(steps: list[tuple[str, int, bool]]) -> None:
    found = Catalogue()
    used: list[int] = []
    for topic, partitions, delete in steps:
        name = TopicName("n", topic)
        try:
            if delete:
                found, _ = found.without(name)
            else:
                before = found
                found, new = made(found, name, partitions, pool=12)
                used += new.partitions if found is not before else ()
        except InvalidRequest:
            pass
        held = [each for topic in found.topics.values() for each in topic.partitions]
        assert len(held) == len(set(held))
        assert not set(held) & set(found.retired)
        assert Catalogue.from_bytes(found.to_bytes()) == found
    assert len(used) == len(set(used))


def test_a_namespace_of_digits_alone_is_refused_as_its_folder_is_that_of_a_log_partition() -> None:
    with pytest.raises(InvalidRequest, match="more than digits"):
        Catalogue().with_new(TopicName("17", "orders"), type="compaction", partitions=1, pool=range(4), now_ms=0)
    Catalogue().with_new(TopicName("17th", "4"), type="compaction", partitions=1, pool=range(4), now_ms=0)
