"""Properties of ranges of a topic's partitions: how they are named, checked, combined and kept."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz_log.core.topics.catalogue import Catalogue
from waltz_log.core.topics.partition_properties import PartitionProperties, properties_of, split_properties
from waltz_log.core.topics.topic_names import TopicName
from waltz_log.errors import InvalidRequest, InvalidSetting

REGIONS = TopicName("shop", "regions")
NAMED = {"owner": "shop", "allow-read": "all", "0-3:allow-read": "emea", "4-7:allow-read": "apac", "2:note": "a:b=c"}


def made(catalogue: Catalogue, **more: Any) -> tuple[Catalogue, Any]:
    about: dict[str, Any] = {"type": "regular", "partitions": 8, "pool": range(8), "now_ms": 0, "properties": NAMED} | more
    return catalogue.with_new(REGIONS, **about)


def test_a_property_of_a_range_replaces_the_topics_only_for_its_partitions() -> None:
    _, topic = made(Catalogue())
    assert topic.properties == {"owner": "shop", "allow-read": "all"}
    assert [topic.properties_of(partition)["allow-read"] for partition in range(8)] == ["emea"] * 4 + ["apac"] * 4
    assert topic.properties_of(2) == {"owner": "shop", "allow-read": "emea", "note": "a:b=c"}
    assert "note" not in topic.properties_of(1)


def test_ranges_survive_the_coordinator_and_a_catalogue_written_before_there_were_any_is_read() -> None:
    catalogue, topic = made(Catalogue())
    assert Catalogue.from_bytes(catalogue.to_bytes()).find(REGIONS) == topic
    written_before = (
        b'{"retired":[],"topics":[["shop/regions","regular",[0],false,{"owner":"shop"},{"durability":"quorum_sync","flush_bytes":1048576,'
        b'"flush_period_ms":10000,"keep_for_subscribers":true,"retention_bytes":-1,"retention_ms":604800000,"tombstone_retention_ms":86400000},0]]}'
    )
    found = Catalogue.from_bytes(written_before)
    assert found.find(REGIONS).properties_of(0) == {"owner": "shop"}
    assert found.to_bytes() == written_before, "a topic without ranges takes no more room than before"


def test_the_same_topic_with_other_ranges_is_another_topic() -> None:
    catalogue, topic = made(Catalogue())
    assert made(catalogue) == (catalogue, topic)
    with pytest.raises(InvalidRequest, match="another topic of that name"):
        made(catalogue, properties=NAMED | {"2:note": "other"})


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({"0-8:owner": "x"}, "partitions 0-8 of a topic that has 0 to 7"),
        ({"5-3:owner": "x"}, "partitions 5-3"),
        ({"0-3:owner": "x", "3-5:owner": "y"}, "sets owner twice for partition 3"),
        ({"0-7:owner": "x", "2:owner": "x"}, "sets owner twice for partition 2"),
        ({"0-3:allow-reed": "x"}, "property of access"),
        ({"0-3:allow-read": ""}, "principals"),
    ],
)
def test_a_range_that_would_not_mean_what_it_says_is_refused(properties: dict[str, str], reason: str) -> None:
    with pytest.raises(InvalidSetting, match=reason):
        made(Catalogue(), properties=properties)


@given(
    st.dictionaries(st.sampled_from("abc"), st.text(max_size=2)),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.dictionaries(st.sampled_from("abc"), st.text(max_size=2), min_size=1)), max_size=4),
)
def test_the_properties_of_a_partition_are_those_of_the_plainest_reading(
    whole: dict[str, str], ranges: list[tuple[int, int, dict[str, str]]]
) -> None:
    named = dict(whole)
    for first, last, own in ranges:
        named |= {f"{first}-{last}:{name}": value for name, value in own.items()}
    split_whole, split_ranges = split_properties(named)
    assert split_whole == whole
    for partition in range(6):
        allowed: dict[str, set[str]] = {name: {value} for name, value in whole.items()}
        covered: dict[str, set[str]] = {}
        for text, value in named.items():
            bounds, colon, name = text.partition(":")
            if colon and int(bounds.split("-")[0]) <= partition <= int(bounds.split("-")[1]):
                covered.setdefault(name, set()).add(value)
        allowed |= covered
        found = properties_of(split_whole, split_ranges, partition)
        assert found.keys() == allowed.keys()
        assert all(found[name] in values for name, values in allowed.items())


def test_a_single_partition_is_a_range_of_one() -> None:
    assert split_properties({"3:a": "b"}) == ({}, (PartitionProperties(3, 3, {"a": "b"}),))
