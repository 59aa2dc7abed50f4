"""What an owner may order or ask for, no storage node refuses: a record that was ordered and that every replica refuses stops its partition."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice, product
from string import ascii_letters
from typing import Any

import pytest

from waltz_log.client.base.settings import ClientSettings
from waltz_log.compaction import view
from waltz_log.core import metadata
from waltz_log.core.client_ids import CLIENT_ID_MAX
from waltz_log.core.formats.record_layout import RECORD_OVERHEAD_BYTES
from waltz_log.core.ports import AnyMethod
from waltz_log.core.topics import catalogue, property_limits
from waltz_log.core.topics.access import allowed
from waltz_log.core.topics.catalogue import Catalogue, Policies, Topic
from waltz_log.core.topics.topic_names import TopicName
from waltz_log.errors import InvalidSetting
from waltz_log.server.base.settings import ServerSettings
from waltz_log.server.directory import topic_calls
from waltz_log.server.upkeep import upkeep
from waltz_log.server.upkeep.view_upkeep import topic_partition
from waltz_log.storage.node import read_access, service, upkeep_service
from waltz_log.storage.segments.scan import RECORD_BYTES_MAX
from waltz_log.transport import methods, request_texts
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.request_limits import OPENING_BYTES_MAX, request_bytes_max
from waltz_log.transport.request_texts import with_names

TOKEN, KEY = bytes(16), bytes(16)
ID = 2**63 - 1


def _most(settings: type[Any], name: str) -> int:
    """The largest value that a setting accepts."""
    return int(settings.model_json_schema()["properties"][name]["maximum"])


ORDERED = _most(ServerSettings, "record_bytes_max") + RECORD_OVERHEAD_BYTES


@pytest.mark.parametrize(
    ("accepted", "ordered"),
    [
        pytest.param(RECORD_BYTES_MAX, ORDERED, id="a record"),
        pytest.param(view.RECORD_BYTES_MAX, RECORD_BYTES_MAX, id="a record that is folded into a view"),
        pytest.param(_most(ServerSettings, "record_bytes_max"), _most(ClientSettings, "record_bytes_max"), id="a record of a client"),
        pytest.param(metadata.PARTITIONS_MAX, catalogue.PARTITIONS_MAX, id="partitions of a topic"),
        pytest.param(read_access.TOKEN_BYTES_MAX, len(TOKEN), id="a token of an owner"),
        pytest.param(upkeep_service.SEGMENTS_MAX, upkeep.SEGMENTS_MAX, id="segments in an answer"),
        pytest.param(request_texts.MAP_ENTRIES_MAX, property_limits.PROPERTIES_MAX, id="properties of a partition"),
        pytest.param(request_texts.TEXT_BYTES_MAX, property_limits.NAME_BYTES_MAX, id="the name of a property"),
        pytest.param(request_texts.VALUE_BYTES_MAX, property_limits.VALUE_BYTES_MAX, id="the value of a property"),
        pytest.param(property_limits.PROPERTIES_BYTES_MAX, topic_calls.PROPERTIES_BYTES_MAX, id="the properties that a principal sets"),
    ],
)
def test_a_storage_node_accepts_at_least_what_an_owner_may_order(accepted: int, ordered: int) -> None:
    assert accepted >= ordered


def test_an_owner_asks_for_no_flush_that_is_too_soon() -> None:
    assert Policies(flush_period_ms=service.FLUSH_PERIOD_MS_MIN).flush_period_ms == service.FLUSH_PERIOD_MS_MIN
    with pytest.raises(InvalidSetting):
        Policies(flush_period_ms=service.FLUSH_PERIOD_MS_MIN - 1)


def test_a_block_of_the_largest_frame_fits_a_message_to_a_replica() -> None:
    """A block has all records of a frame. The columns of the frame that it leaves out have room for the numbers that it adds."""
    count = -(-methods.MAX_FRAME_BYTES // ORDERED)  # with more records the frame's marks need more room
    frame = pb.AppendFrame(generation=1, lengths=bytes(4 * count), marks=bytes(8 * count), records=b"0")
    unused = methods.MAX_FRAME_BYTES - pb.ClientMessage(append=frame).ByteSize()
    frame.records = bytes(unused - 8)
    while pb.ClientMessage(append=frame).ByteSize() < methods.MAX_FRAME_BYTES:
        frame.records += b"0"
    assert pb.ClientMessage(append=frame).ByteSize() == methods.MAX_FRAME_BYTES
    block = pb.Block(first_transaction_id=2**42 - 1, lengths=frame.lengths, records=frame.records, append_time_ms=2**42 - 1, checksum=2**32 - 1)
    assert pb.ReplicateRequest(block=block).ByteSize() <= methods.MAX_FRAME_BYTES
    assert pb.ReplicateRequest(blocks=pb.Blocks(blocks=[block])).ByteSize() > methods.MAX_FRAME_BYTES, "so a large block is sent alone"


NAME = TopicName.parse(f"{'n' * 99}/{'t' * 99}")


def _topic(properties: Mapping[str, str]) -> Topic:
    _, topic = Catalogue().with_new(NAME, type="compaction", partitions=1, pool=[metadata.PARTITIONS_MAX - 1], now_ms=0, properties=properties)
    return topic


def _principals(count: int) -> str:
    return ",".join(map("".join, islice(product(ascii_letters, repeat=3), count)))


def _filled(count: int, size: int) -> dict[str, str]:
    """That number of properties, with names of that length and values that use the rest."""
    names = [f"{number:04d}".ljust(size, "n") for number in range(count)]
    rest = property_limits.PROPERTIES_BYTES_MAX // count - size
    return dict.fromkeys(names, "v" * min(rest, property_limits.VALUE_BYTES_MAX))


LARGEST = {
    "no properties": {},
    "many short properties": _filled(property_limits.PROPERTIES_MAX, 4),
    "long names": _filled(500, property_limits.NAME_BYTES_MAX),
    "long values": _filled(8, 4),
    "many readers": {"allow-read": _principals(property_limits.READERS_MAX)},
    "readers with the longest names": {"allow-read": ",".join(f"spiffe://{number:03d}".ljust(249, "r") for number in range(65))},
    "control characters": {"line": "a\nb\x00"},
}


def _requests(topic: Topic) -> list[tuple[AnyMethod, Any]]:
    """What an owner sends to a storage node about a partition, with the largest numbers."""
    of = topic_partition(topic, 0)
    about: dict[str, Any] = {"cluster_key": KEY, "partition": metadata.PARTITIONS_MAX - 1, "session": ID}
    opening = pb.ReplicateOpen(**about, stream_epoch=ID)
    return [
        (
            methods.OPEN,
            pb.OpenRequest(
                **about,
                partitions=metadata.PARTITIONS_MAX,
                topic=str(topic.name),
                readers=allowed(topic.properties_of(0), "read"),
                owner_token=TOKEN,
                stream_epoch=ID,
            ),
        ),
        (methods.DESCRIBE, pb.DescribeRequest(**about, segments_max=upkeep.SEGMENTS_MAX, of=of)),
        (methods.COMPACT, pb.CompactRequest(**about, of=of, bound=ID, now_ms=ID, tombstone_retention_ms=ID, start=ID)),
        (methods.REPLICATE, pb.ReplicateRequest(open=opening)),
        (methods.TRUNCATE, pb.TruncateRequest(**about, last_transaction_id=ID, lost=True)),
        (methods.KEEP_CLIENT_IDS, pb.KeepClientIdsRequest(cluster_key=KEY, last=CLIENT_ID_MAX)),
    ]


@pytest.mark.parametrize("properties", LARGEST.values(), ids=LARGEST.keys())
def test_a_storage_node_accepts_every_request_about_the_largest_topic(properties: Mapping[str, str]) -> None:
    for method, request in _requests(_topic(properties)):
        assert len(with_names(request).SerializeToString()) <= request_bytes_max(method), method.name
    assert len(_requests(_topic(properties))[3][1].SerializeToString()) <= OPENING_BYTES_MAX


TOO_LARGE = {
    "too many properties": {f"{number:04d}": "" for number in range(property_limits.PROPERTIES_MAX + 1)},
    "too long a name": {"n" * (property_limits.NAME_BYTES_MAX + 1): ""},
    "too long a name in bytes": {"\u00e9" * (property_limits.NAME_BYTES_MAX // 2 + 1): ""},
    "too long a value": {"name": "v" * (property_limits.VALUE_BYTES_MAX + 1)},
    "too long a value in bytes": {"name": "\u00e9" * (property_limits.VALUE_BYTES_MAX // 2 + 1)},
    "too many bytes": _filled(500, property_limits.NAME_BYTES_MAX) | {"one more": "v" * 1024},
    "too many readers": {"allow-read": ",".join(map("".join, islice(product(ascii_letters + "0123456789-_.@:", repeat=2), 4097)))},
}


@pytest.mark.parametrize("prefix", ["", "0:"], ids=["of the topic", "of a range"])
@pytest.mark.parametrize("properties", TOO_LARGE.values(), ids=TOO_LARGE.keys())
def test_a_topic_whose_properties_no_storage_node_would_accept_is_not_created(properties: Mapping[str, str], prefix: str) -> None:
    with pytest.raises(InvalidSetting):
        _topic({prefix + name: text for name, text in properties.items()})


def test_properties_of_the_topic_and_of_a_range_count_together() -> None:
    half = property_limits.PROPERTIES_MAX // 2 + 1
    with pytest.raises(InvalidSetting, match="properties for a partition"):
        _topic({f"{number:04d}": "" for number in range(half)} | {f"0:{number:04d}x": "" for number in range(half)})
