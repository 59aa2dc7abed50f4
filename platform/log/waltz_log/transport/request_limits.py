"""The largest request of each procedure, in bytes, and about how much its answer needs.

A request is received for a peer whose role the procedure permits, and decoded only if it is not larger than its limit. Protobuf needs up to 20 times
the bytes of a message of many small fields, so the limit is what one call can cost. Of a stream the first message counts here; the messages after it
come from a peer that the handler accepted, and may have `methods.MAX_FRAME_BYTES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from waltz_log.core.ports import AnyMethod
from waltz_log.transport import methods

__all__ = ["ANSWER_BYTES", "OPENING_BYTES_MAX", "REQUEST_BYTES_MAX", "SMALL_BYTES", "answer_bytes", "request_bytes_max"]

OPENING_BYTES_MAX: Final = 1024
"""For the first message of a direct stream. The opening of a replication stream has about 40 bytes, that of a mount 50 and the names of principal and
topics. A caller with a larger first message uses gRPC."""

SMALL_BYTES: Final = 16 * 1024
"""Numbers and a few names: of a principal, a topic, a token."""

NAMES_BYTES: Final = 256 * 1024
"""A list of names: the topics that a client may address by number, or the properties of a topic."""

REQUEST_BYTES_MAX: Final[Mapping[AnyMethod, int]] = MappingProxyType(
    {
        methods.MOUNT: NAMES_BYTES,
        methods.SERVER_DIRECT: OPENING_BYTES_MAX,
        methods.BOUND: 32 * 1024,  # every partition of the largest log, at most 5 bytes each
        methods.RESOLVE: SMALL_BYTES,
        methods.TRANSACTIONS: 544 * 1024,  # 65,536 ids of 8 bytes
        methods.TRACES: SMALL_BYTES,
        methods.SERVER_STATUS: SMALL_BYTES,
        methods.FOLLOW: SMALL_BYTES,
        methods.CONFIRM: SMALL_BYTES,
        methods.CLIENT_ID: SMALL_BYTES,
        methods.OUTBOX: SMALL_BYTES,
        methods.SUBSCRIBERS: NAMES_BYTES,
        methods.TOPICS: SMALL_BYTES,
        methods.CLUSTER: SMALL_BYTES,
        methods.PLACEMENT: SMALL_BYTES,
        methods.KEEP_CLIENT_IDS: SMALL_BYTES,
        methods.OPEN: NAMES_BYTES,
        methods.SET_LOW_WATER_MARK: SMALL_BYTES,
        methods.KEEP_PROGRESS: SMALL_BYTES,
        methods.TRUNCATE: SMALL_BYTES,
        methods.REPLICATE: SMALL_BYTES,
        methods.STORAGE_DIRECT: OPENING_BYTES_MAX,
        methods.READ: SMALL_BYTES,
        methods.LOCATE: SMALL_BYTES,
        methods.PING: SMALL_BYTES,
        methods.STORAGE_STATUS: SMALL_BYTES,
        methods.DESCRIBE: NAMES_BYTES,
        methods.TRIM: SMALL_BYTES,
        methods.BEGIN: SMALL_BYTES,
        methods.COMPACT: NAMES_BYTES,
        methods.READ_VIEW: SMALL_BYTES,
        methods.LOAD_VIEW: NAMES_BYTES,
        methods.DROP_VIEW: SMALL_BYTES,
    }
)
"""A test compares the table with the procedures. A procedure that is not listed has `SMALL_BYTES`."""


ANSWER_BYTES: Final[Mapping[AnyMethod, int]] = MappingProxyType(
    {
        methods.BOUND: 256 * 1024,  # 4,096 bounds of up to 55 bytes
        methods.RESOLVE: 1024 * 1024,
        methods.TRANSACTIONS: 2 * 1024 * 1024,
        methods.SERVER_STATUS: 1024 * 1024,
        methods.STORAGE_STATUS: 1024 * 1024,
        methods.DESCRIBE: 256 * 1024,
        methods.SUBSCRIBERS: 1024 * 1024,
        methods.TOPICS: 1024 * 1024,
        methods.CLUSTER: 4 * 1024 * 1024,  # topics and rules, of up to a megabyte each, assignments and nodes
    }
)
"""About how much memory a call needs until its caller has read the answer, where it is not little. Streams and reads count what they send."""


def answer_bytes(method: AnyMethod) -> int:
    return ANSWER_BYTES.get(method, SMALL_BYTES)


def request_bytes_max(method: AnyMethod) -> int:
    return REQUEST_BYTES_MAX.get(method, SMALL_BYTES)
