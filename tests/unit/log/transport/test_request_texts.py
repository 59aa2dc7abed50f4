"""Names in requests are checked before a handler, a rule, a log line or an error message sees them: on each transport, for each procedure."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from waltz_log.core.ports import AnyMethod
from waltz_log.errors import ProtocolViolation
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.large_messages import decoder_of
from waltz_log.transport.request_texts import ENTRIES_MAX, TEXT_BYTES_MAX

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
