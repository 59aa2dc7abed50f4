"""`waltz append` and `waltz read`: single transactions by hand, of a partition of the log or of a topic.

For inspection and experiments, not for speed. Text is UTF-8. Other bytes are accepted unchanged, shown with escapes, and in JSON as base64 under its
own name.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any, NamedTuple

from waltz_log.client import ClientSettings, TopicHandle, WaltzClient
from waltz_log.errors import InvalidSetting, OutOfRange
from waltz_log.exit_codes import OK

__all__ = ["Place", "append", "read"]


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


class _Row(NamedTuple):
    partition: int
    transaction_id: int
    timestamp_ms: int
    header: int
    key: bytes | None
    data: bytes


def _settings(principal: str | None, timeout_s: float) -> ClientSettings:
    return ClientSettings(principal=principal, connect_timeout_s=timeout_s, append_timeout_s=timeout_s, request_timeout_s=timeout_s)


async def append(address: str, data: str | None, place: Place, *, header: int, delete: bool, principal: str | None, timeout_s: float) -> int:
    """Appends one transaction, or one for each line of standard input. Prints the partition of the log and the id of each."""
    place.check()
    if delete and (place.key is None or data is not None):
        raise InvalidSetting(name="--delete", reason="wants --key, and no data", nearest=None)
    lines: Iterable[bytes] = (line.removesuffix(b"\n") for line in sys.stdin.buffer) if data is None and not delete else [os.fsencode(data or "")]
    async with WaltzClient.open(address, _settings(principal, timeout_s)) as client:
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
            print(f"partition={receipt.partition} transaction_id={receipt.transaction_id}", flush=True)
    return OK


async def read(
    address: str,
    place: Place,
    *,
    after: int | None,
    limit: int | None,
    follow: bool,
    compacted: bool,
    output: str,
    principal: str | None,
    timeout_s: float,
) -> int:
    """What is there now, or, with `follow`, also what comes."""
    place.check()
    async with WaltzClient.open(address, _settings(principal, timeout_s)) as client:
        topic = None if place.topic is None else await client.topic(place.topic)
        if topic is None:
            rows = _of_log(client, place, after, compacted=compacted, follow=follow)
        else:
            rows = _of_topic(client, topic, place, after, compacted=compacted, follow=follow)
        left = limit
        async with aclosing(rows):
            async for row in rows:
                if left == 0:
                    break
                print(_formatted(row, output), flush=True)
                left = None if left is None else left - 1
                if left == 0:
                    break
    return OK


async def _of_log(client: WaltzClient, place: Place, after: int | None, *, compacted: bool, follow: bool) -> AsyncGenerator[_Row, None]:
    assert place.partition is not None
    if compacted:
        raise InvalidSetting(name="--compacted", reason="is for topics: --topic namespace/name", nearest=None)
    mark = await client.high_water_mark(place.partition)
    partition, start = place.partition, -1 if after is None else after
    await _expect_within(client, partition, start, mark)

    async def read(positions: Mapping[int, int]) -> AsyncGenerator[_Row, None]:
        if positions[partition] >= mark and not follow:
            return
        async with aclosing(client.feed(partition, positions[partition])) as feed:
            async for each in feed:
                yield _Row(partition, each.transaction_id, each.timestamp_ms, each.header, None, each.data)
                if each.transaction_id >= mark and not follow:
                    return

    async with aclosing(_from_what_is_kept(read, {partition: start}, {partition: partition}, asked=after is not None)) as rows:
        async for row in rows:
            yield row


async def _of_topic(
    client: WaltzClient, topic: TopicHandle, place: Place, after: int | None, *, compacted: bool, follow: bool
) -> AsyncGenerator[_Row, None]:
    key = None if place.key is None else os.fsencode(place.key)
    if key is not None and not topic.keyed:
        raise InvalidSetting(name="--key", reason=f"cannot be used: {topic.name} has no keys", nearest=None)
    partition = topic.partition_of(key) if key is not None and place.partition is None else place.partition
    if partition is None and topic.partitions == 1:
        partition = 0
    if partition is None and after is not None:
        raise InvalidSetting(name="--after", reason="wants --partition: each partition has ids of its own", nearest=None)
    marks = await topic.high_water_marks()
    until = None if follow else marks

    async def read(positions: Mapping[int, int]) -> AsyncGenerator[_Row, None]:
        async with aclosing(topic.feed(partition, positions, compacted=compacted, until=until)) as feed:
            async for each in feed:
                yield _Row(each.partition, each.transaction_id, each.timestamp_ms, each.header, each.key, each.value)

    start = dict.fromkeys(range(topic.partitions) if partition is None else (partition,), -1 if after is None else after)
    for each, position in start.items():
        await _expect_within(client, topic.log_partition(each), position, marks[each])
    log_partitions = {topic.log_partition(each): each for each in start}
    async with aclosing(_from_what_is_kept(read, start, log_partitions, asked=after is not None)) as rows:
        async for row in rows:
            if key is None or row.key == key:
                yield row


async def _expect_within(client: WaltzClient, partition: int, after: int, mark: int) -> None:
    """Raises `OutOfRange` for a position above the end of a partition of the log: waiting there for what comes would hide a mistake."""
    if after > mark:
        raise OutOfRange(partition=partition, asked=after + 1, first=await client.first_transaction_id(partition), last=mark)


async def _from_what_is_kept(
    read: Callable[[Mapping[int, int]], AsyncGenerator[_Row, None]], positions: dict[int, int], of_log: Mapping[int, int], *, asked: bool
) -> AsyncGenerator[_Row, None]:
    """From the first transaction that each partition still has, and says so where that is not the first there was. What is trimmed while it is read
    is an error, and so is what was asked for and is not there. `of_log`: the partitions by those of the log, which errors name."""
    while True:
        try:
            async with aclosing(read(positions)) as rows:
                async for row in rows:
                    yield row
                    positions[row.partition] = row.transaction_id
            return
        except OutOfRange as error:
            partition = of_log.get(error.partition)
            if asked or partition is None or positions[partition] != -1 or error.first <= 0:
                raise
            positions[partition] = error.first - 1
            print(f"partition {partition} begins at transaction {error.first}: retention removed what came before", file=sys.stderr)


def _formatted(row: _Row, output: str) -> str:
    time = datetime.fromtimestamp(row.timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
    if output == "json":
        found: dict[str, Any] = {"partition": row.partition, "transaction_id": row.transaction_id, "timestamp": time, "header": row.header}
        return json.dumps(found | _text("key", row.key) | _text("data", row.data))
    key = "" if row.key is None else f" key={_printable(row.key)}"
    return f"{row.partition} {row.transaction_id} {time} header={row.header}{key} {_printable(row.data)}"


def _text(name: str, data: bytes | None) -> dict[str, Any]:
    if data is None:
        return {}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def _printable(data: bytes) -> str:
    """On one line of a terminal, whatever is in it."""
    text = data.decode(errors="backslashreplace")
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
