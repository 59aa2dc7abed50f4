"""`waltz append`: single transactions by hand, to a partition of the log or to a topic. For experiments, not for speed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import NamedTuple

from waltz_log.cli.printing import print_line
from waltz_log.client import ClientSettings, WaltzClient
from waltz_log.errors import InvalidSetting
from waltz_log.exit_codes import OK

__all__ = ["Place", "append", "client_settings"]


class Place(NamedTuple):
    """Where, as the options say: a topic, with its partition or a key, or a partition of the log."""

    topic: str | None
    key: str | None
    partition: int | None

    def check(self) -> None:
        """Raises `InvalidSetting`."""
        if self.topic is None and self.key is not None:
            raise InvalidSetting(name="--key", reason="is for topics: --topic namespace/name", nearest=None)
        if self.topic is None and self.partition is None:
            raise InvalidSetting(name="--topic or --partition", reason="is required", nearest=None)


def client_settings(principal: str | None, timeout_s: float) -> ClientSettings:
    return ClientSettings(principal=principal, connect_timeout_s=timeout_s, append_timeout_s=timeout_s, request_timeout_s=timeout_s)


async def append(address: str, data: str | None, place: Place, *, header: int, delete: bool, principal: str | None, timeout_s: float) -> int:
    """Appends one transaction, or one for each line of standard input. Prints the partition of the log and the id of each."""
    place.check()
    if delete and (place.key is None or data is not None):
        raise InvalidSetting(name="--delete", reason="wants --key, and no data", nearest=None)
    lines: Iterable[bytes] = (line.removesuffix(b"\n") for line in sys.stdin.buffer) if data is None and not delete else [os.fsencode(data or "")]
    async with WaltzClient.open(address, client_settings(principal, timeout_s)) as client:
        topic = None if place.topic is None else await client.topic(place.topic)
        for line in lines:
            if topic is None:
                assert place.partition is not None
                receipt = await client.append(place.partition, line, header)
            elif delete:
                receipt = await topic.delete(os.fsencode(place.key or ""), partition=place.partition, header=header)
            else:
                key = None if place.key is None else os.fsencode(place.key)
                receipt = await topic.append(line, key=key, partition=place.partition, header=header)
            print_line(f"partition={receipt.partition} transaction_id={receipt.transaction_id}")
    return OK
