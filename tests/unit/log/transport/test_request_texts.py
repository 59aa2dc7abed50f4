"""Names in requests are checked before a handler, a rule, a log line or an error message sees them: on each transport, for each procedure."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from waltz_log.core.metadata import PARTITIONS_MAX
from waltz_log.core.ports import AnyMethod
from waltz_log.errors import ProtocolViolation
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.large_messages import decoder_of
from waltz_log.transport.request_texts import COLUMNS, ENTRIES_MAX, FRAMES, KEY_BYTES_MAX, MAP_ENTRIES_MAX, TEXT_BYTES_MAX, VALUE_BYTES_MAX

METHODS: tuple[AnyMethod, ...] = tuple(each for each in (getattr(methods, name) for name in methods.__all__) if hasattr(each, "served_by"))

WRONG = {
    "long": "a" * (TEXT_BYTES_MAX + 1),
    "long in bytes": "\u00e9" * (TEXT_BYTES_MAX // 2 + 1),
    "huge": "\x00" * 2_600_000,
    "escape": "shop/\x1b[31morders",
    "line end": "shop\nlevel=error",
    "single-byte control sequence": "\x9b2J",
    "direction override": "\u202egnp.exe",
    "null": "\x00",
}

EXEMPT = {"properties"}
"""Of a topic, in requests that nodes alone may send."""


def _texts(message: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The paths of all text fields of a message."""
    found: list[tuple[str, ...]] = []
    for each in message.DESCRIPTOR.fields:
        if each.type == each.TYPE_STRING:
            found.append((*path, each.name))
        elif each.message_type is not None and each.name not in EXEMPT and not each.message_type.GetOptions().map_entry:
            inner = getattr(message, each.name).add() if each.is_repeated else getattr(message, each.name)
            found += _texts(inner, (*path, each.name))
    return found


def _with_text(request: Any, path: tuple[str, ...], text: str) -> Any:
    made = copy.deepcopy(request)
    holder = made
    for name in path[:-1]:
        holder = getattr(holder, name)
        if hasattr(holder, "add"):
            holder = holder.add()
    if holder.DESCRIPTOR.fields_by_name[path[-1]].is_repeated:
        getattr(holder, path[-1]).extend(["shop/orders", text])
    else:
        setattr(holder, path[-1], text)
    return made


CASES = [(method, path) for method in METHODS for path in _texts(method.request())]


def test_there_are_names_to_check() -> None:
    expected = {"principal", "topic", "topics", "readers", "namespace", "source", "name", "nonce", "ticket", "existing", "type", "server"}
    assert {path[-1] for _, path in CASES} == expected


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize(("method", "path"), CASES, ids=[f"{method.name} {'.'.join(path)}" for method, path in CASES])
def test_a_name_that_is_long_or_not_printable_is_refused_and_not_repeated(method: AnyMethod, path: tuple[str, ...], text: str) -> None:
    decode = decoder_of(method)
    decode(_with_text(method.request(), path, "shop/orders").SerializeToString())
    with pytest.raises(ProtocolViolation, match=rf"{path[-1]}|too large") as refused:
        decode(_with_text(method.request(), path, text).SerializeToString())
    assert len(str(refused.value)) < 100
    assert str(refused.value).isprintable()


def test_messages_in_a_request_that_are_repeated_are_bounded() -> None:
    decode = decoder_of(methods.FOLLOW)
    few = pb.FollowRequest(versions=[pb.MapVersion(source="topics")] * ENTRIES_MAX)
    assert decode(few.SerializeToString()) == few
    with pytest.raises(ProtocolViolation, match="versions has more than 64 entries"):
        decode(pb.FollowRequest(versions=[pb.MapVersion()] * (ENTRIES_MAX + 1)).SerializeToString())


def test_an_append_frame_is_decoded_without_a_search_for_names() -> None:
    data = pb.ClientMessage(append=pb.AppendFrame(generation=1, records=b"x" * 100)).SerializeToString()
    assert type(decoder_of(methods.MOUNT)(data)).__name__ == "ReceivedAppend"


# ---- every field that may have any length -------------------------------------------------------------------------------------------------------


def _open_fields(message: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The paths of the fields of bytes and of maps, and of repeated ones, but not of frames of records."""
    found: list[tuple[str, ...]] = []
    for each in message.DESCRIPTOR.fields:
        is_map = each.message_type is not None and each.message_type.GetOptions().map_entry
        if each.message_type is not None and not is_map:
            if each.message_type.full_name in FRAMES:
                continue
            if each.is_repeated:
                found.append((*path, each.name))
            inner = getattr(message, each.name).add() if each.is_repeated else getattr(message, each.name)
            found += _open_fields(inner, (*path, each.name))
        elif is_map or each.is_repeated or each.type == each.TYPE_BYTES:
            found.append((*path, each.name))
    return found


OPEN = [(method, path) for method in METHODS for path in _open_fields(method.request())]


def _filled(request: Any, path: tuple[str, ...], size: int) -> Any:
    """With a field of that many bytes or entries."""
    made = copy.deepcopy(request)
    holder = made
    for name in path[:-1]:
        holder = getattr(holder, name)
        holder = holder.add() if hasattr(holder, "add") else holder
    field = holder.DESCRIPTOR.fields_by_name[path[-1]]
    values = getattr(holder, path[-1])
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        values.update({f"{number}": "x" for number in range(size)})
    elif field.message_type is not None:
        for _ in range(size):
            values.add()
    elif not field.is_repeated:
        setattr(holder, path[-1], b"x" * size)
    else:
        values.extend({field.TYPE_STRING: "x", field.TYPE_BYTES: b"x"}.get(field.type, 1) for _ in range(size))
    return made


def _limit(method: AnyMethod, path: tuple[str, ...]) -> int:
    holder = method.request()
    for name in path[:-1]:
        holder = getattr(holder, name)
        holder = holder.add() if hasattr(holder, "add") else holder
    field = holder.DESCRIPTOR.fields_by_name[path[-1]]
    if field.message_type is not None:
        return MAP_ENTRIES_MAX if field.message_type.GetOptions().map_entry else ENTRIES_MAX
    return PARTITIONS_MAX if field.is_repeated else COLUMNS.get(field.full_name, KEY_BYTES_MAX)


@pytest.mark.parametrize(("method", "path"), OPEN, ids=[f"{method.name} {'.'.join(path)}" for method, path in OPEN])
def test_each_field_without_a_fixed_size_has_a_limit(method: AnyMethod, path: tuple[str, ...]) -> None:
    decode, limit = decoder_of(method), _limit(method, path)
    decode(_filled(method.request(), path, limit).SerializeToString())
    with pytest.raises(ProtocolViolation, match=rf"{path[-1]}|too large"):
        decode(_filled(method.request(), path, limit + 1).SerializeToString())


def test_a_field_that_is_declared_longer_exists() -> None:
    fields = {each.full_name for message in pb.DESCRIPTOR.message_types_by_name.values() for each in message.fields}
    assert fields >= set(COLUMNS)
    assert {each.full_name for each in pb.DESCRIPTOR.message_types_by_name.values()} >= FRAMES


MAPS = [(methods.SUBSCRIBERS, ("labels",)), (methods.TOPICS, ("policies",)), (methods.TOPICS, ("plan", "properties"))]


def test_every_map_that_a_client_sends_is_in_the_table() -> None:
    found = {(method, path) for method, path in OPEN if method.request().DESCRIPTOR.full_name in ("waltz.SubscribersRequest", "waltz.TopicsRequest")}
    assert {(method, path) for method, path in found if _limit(method, path) == MAP_ENTRIES_MAX} == set(MAPS)


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize(("method", "path"), MAPS, ids=[".".join(path) for _, path in MAPS])
def test_a_key_or_value_of_a_map_that_is_long_or_not_printable_is_refused(method: AnyMethod, path: tuple[str, ...], text: str) -> None:
    decode = decoder_of(method)
    for key, value in ((text, "v"), ("k", text if not text.isprintable() else "v" * (VALUE_BYTES_MAX + 1))):
        request = method.request()
        holder = request
        for name in path[:-1]:
            holder = getattr(holder, name)
        getattr(holder, path[-1])[key] = value
        with pytest.raises(ProtocolViolation, match=path[-1]) as refused:
            decode(request.SerializeToString())
        assert len(str(refused.value)) < 100
        assert str(refused.value).isprintable()
