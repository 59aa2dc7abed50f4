"""Where a request names the partition that it is for: what a node of several workers passes it on by.

A request that has a field `partition`, or whose first message on a stream has one message with such a field, belongs to the worker that owns that
partition. All others belong to every worker, and their answers are put together (`gathering`). Found in the messages' own descriptions, so that a new
procedure is routed by what its request says, and nothing about it can be forgotten here.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from waltz_log.core.ports import AnyMethod
from waltz_log.errors import InvalidRequest

__all__ = ["route_of"]


@cache
def route_of(method: AnyMethod) -> tuple[int, ...] | None:
    """The field numbers that lead to the partition (`core.formats.wire_peek`); None where every worker is asked. Raises `InvalidRequest` for a
    request that could be read in two ways: a defect of the message."""
    own = _partition(method.request.DESCRIPTOR)
    if own is not None:
        return (own,)
    found = [
        (field.number, inner)
        for field in method.request.DESCRIPTOR.fields
        if field.message_type is not None and not field.is_repeated and (inner := _partition(field.message_type)) is not None
    ]
    if len(found) > 1:
        raise InvalidRequest(reason=f"several messages of {method.name} name a partition")
    return found[0] if found else None


def _partition(message: Any) -> int | None:
    field = message.fields_by_name.get("partition")
    return None if field is None or field.is_repeated else int(field.number)
