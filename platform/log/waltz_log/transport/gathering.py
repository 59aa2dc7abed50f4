"""Calls that every worker of a node answers in part: how the parts become the node's one answer.

A worker that does not answer is left out: its partitions are missing in the answer, as those of a node that is down are, and `workers` of the
statistics says so. One that refuses speaks for all: what it says is the answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from waltz_log.core.gathering import gathered
from waltz_log.core.ports import Handler, Method, Service
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb

__all__ = ["GATHERED", "Gather", "describing"]


class Gather(NamedTuple):
    """`together`: from the answers in the order of the workers, None where there is none, to one answer. `partitions`: of which a request wants to
    know; nobody but their owners is asked then, so that a worker that stands still holds up nobody who asks of others. Empty: of all."""

    together: Callable[[Sequence[Any | None]], Any]
    partitions: Callable[[Any], Sequence[int]] = lambda request: ()


_PROCESS = "worker_process"
"""Beside a worker's statistics, until they are put together."""


def describing(service: Service, describe: Callable[[], dict[str, Any]]) -> Service:
    """The service, with what its process tells of itself in its statistics."""

    def described(handler: Handler) -> Handler:
        async def tell(request: Any) -> Any:
            answer = await handler(request)
            answer.json = json.dumps(json.loads(answer.json) | {_PROCESS: describe()})
            return answer

        return tell

    return {method: described(handler) if method in _STATISTICS else handler for method, handler in service.items()}


def _bounds(answers: Sequence[Any | None]) -> Any:
    found = [bound for answer in answers if answer is not None for bound in answer.bounds]
    return pb.BoundResponse(bounds=sorted(found, key=lambda bound: int(bound.partition)))


def _statistics(answers: Sequence[Any | None]) -> str:
    told = [None if answer is None else dict(json.loads(answer.json)) for answer in answers]
    workers = [{"worker": number, "answers": each is not None} | (each or {}).pop(_PROCESS, {}) for number, each in enumerate(told)]
    return json.dumps(gathered([each for each in told if each is not None]) | {"workers": workers})


GATHERED: Mapping[Method, Gather] = {
    methods.BOUND: Gather(_bounds, lambda request: request.partitions),
    methods.SERVER_STATUS: Gather(lambda answers: pb.ServerStatusResponse(json=_statistics(answers))),
    methods.STORAGE_STATUS: Gather(lambda answers: pb.StorageStatusResponse(json=_statistics(answers))),
}

_STATISTICS = (methods.SERVER_STATUS, methods.STORAGE_STATUS)
