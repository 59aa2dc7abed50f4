"""Where a request names the partition that it is for: what a node of several workers passes it on by.

A request that has a field `partition`, or whose first message on a stream has one message with such a field, belongs to the worker that owns that
partition. All others belong to every worker, and their answers are put together (`gathering`). Found in the messages' own descriptions, so that a new
procedure is routed by what its request says, and nothing about it can be forgotten here. A procedure in `ANYWHERE` is answered by whichever worker
it arrives at: it is about the cluster, which every worker follows.
"""

from __future__ import annotations

from functools import cache, reduce
from typing import Any, Final  # Any: messages of any method

from waltz_log.core.ports import AnyMethod
from waltz_log.errors import InvalidRequest
from waltz_log.transport.methods import CLIENT_ID, CLUSTER, CONFIRM, FOLLOW, OUTBOX, PLACEMENT, SUBSCRIBERS, TOPICS

__all__ = ["ANYWHERE", "partition_of", "route_of"]

ANYWHERE: Final[frozenset[AnyMethod]] = frozenset({FOLLOW, CONFIRM, CLIENT_ID, OUTBOX, SUBSCRIBERS, TOPICS, CLUSTER, PLACEMENT})


@cache
def route_of(method: AnyMethod) -> tuple[str, ...] | None:
    """The fields that lead to the partition; None if every worker is asked. Raises `InvalidRequest` for a request that could be read in two
    ways: a defect of the message."""
    if _names_partition(method.request.DESCRIPTOR):
        return ("partition",)
    found = [
        (str(field.name), "partition")
        for field in method.request.DESCRIPTOR.fields
        if field.message_type is not None and not field.is_repeated and _names_partition(field.message_type)
    ]
    if len(found) > 1:
        raise InvalidRequest(reason=f"several messages of {method.name} name a partition")
    return found[0] if found else None


def partition_of(message: Any, route: tuple[str, ...]) -> int:
    """0 if the message names none, as in protobuf: the owner of partition 0 refuses the message with the reason."""
    return int(reduce(getattr, route, message))


def _names_partition(message: Any) -> bool:
    field = message.fields_by_name.get("partition")
    return field is not None and not field.is_repeated
