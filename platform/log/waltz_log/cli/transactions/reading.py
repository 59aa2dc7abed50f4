"""`waltz read` and `waltz tail`: transactions of a partition of the log, of all of them, or of a topic, from an id or a time on.

Without `follow` the command reads what is committed when it begins, and ends. Positions by time come from the replicas' indexes, so nothing before
them is read.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass

from waltz_log.cli.printing import print_line
from waltz_log.cli.times import parse_time
from waltz_log.cli.transactions.feeds import merged
from waltz_log.cli.transactions.printed_rows import Filter, Row, printer
from waltz_log.cli.transactions.transactions import Place, client_settings
from waltz_log.client import TopicHandle, WaltzClient
from waltz_log.errors import InvalidSetting, OutOfRange
from waltz_log.exit_codes import OK
from waltz_log.processes.clock import WallClock

__all__ = ["Span", "View", "read", "tail"]

SPAN_MAX = 100_000
"""Transactions of a partition that `tail` reads at once."""


@dataclass(frozen=True, slots=True)
class Span:
    """Where reading begins and ends, as the options say. At most one of `after`, an id, and `from_time` is given."""

    after: int | None = None
    from_time: str | None = None
    to_time: str | None = None
    follow: bool = False
    compacted: bool = False

    def check(self) -> None:
        """Raises `InvalidSetting`."""
        if self.after is not None and self.from_time is not None:
            raise InvalidSetting(name="--from-time", reason="cannot be combined with --after", nearest=None)
        if self.follow and self.to_time is not None:
            raise InvalidSetting(name="--to-time", reason="cannot be combined with --follow", nearest=None)
        if self.compacted and (self.from_time is not None or self.to_time is not None):
            raise InvalidSetting(name="--compacted", reason="cannot be combined with a time: the view has the newest value of each key", nearest=None)


@dataclass(frozen=True, slots=True)
class View:
    """What is shown and how, as the options say. `grep`: text in the data; `template`: a format string."""

    output: str = "table"
    template: str | None = None
    grep: str | None = None
    header: int | None = None

    def filter(self, key: bytes | None) -> Filter:
        return Filter(None if self.grep is None else os.fsencode(self.grep), self.header, key)


async def read(
    address: str,
    place: Place,
    *,
    span: Span,
    limit: int | None,
    view: View,
    principal: str | None,
    timeout_s: float,
) -> int:
    """The transactions that exist now and, with `follow`, also later ones. `limit` counts what is printed."""
    place.check()
    span.check()
    show = printer(view.output, view.template)
    async with WaltzClient.open(address, client_settings(principal, timeout_s)) as client:
        source = await _source(client, place)
        shown = view.filter(source.key)
        left = limit
        async with aclosing(_rows(client, source, span)) as rows:
            async for row in rows:
                if shown.fits(row):
                    show(row)
                    left = None if left is None else left - 1
                if left == 0:
                    break
    return OK


async def tail(
    address: str,
    place: Place,
    *,
    count: int,
    from_time: str | None,
    follow: bool,
    view: View,
    principal: str | None,
    timeout_s: float,
) -> int:
    """The last `count` transactions that fit the view, of all the partitions together in the order of their times, or those from a time on; then what
    comes."""
    show = printer(view.output, view.template)
    async with WaltzClient.open(address, client_settings(principal, timeout_s)) as client:
        source = await _source(client, place)
        shown = view.filter(source.key)
        marks = await source.marks(client)
        if from_time is None:
            found = await _newest(client, source, marks, shown, count)
        else:
            starts = await _positions(client, source, from_time, "--from-time")
            async with aclosing(source.read(starts, marks)) as rows:
                found = sorted([row async for row in rows if shown.fits(row)], key=_by_time)
        for row in found:
            show(row)
        if follow:
            async with aclosing(source.read(marks, None)) as rows:
                async for row in rows:
                    if shown.fits(row):
                        show(row)
    return OK


async def _newest(client: WaltzClient, source: _Source, marks: Mapping[int, int], shown: Filter, count: int) -> list[Row]:
    """The last `count` rows that fit, in the order of their times. Reads backwards from the marks, in spans that grow, because rows that fit may be
    rare. A partition is done when its older rows can no longer be among the newest."""
    found: list[Row] = []
    before = {each: await source.first(client, each) - 1 for each in marks}
    ends = {each: mark for each, mark in marks.items() if mark > before[each] and count}
    span = count
    while ends:
        starts = {each: max(end - span, before[each]) for each, end in ends.items()}
        oldest: dict[int, Row] = {}
        async with aclosing(source.read(starts, ends)) as rows:
            async for row in rows:
                oldest.setdefault(row.partition, row)
                if shown.fits(row):
                    found.append(row)
        found = sorted(found, key=_by_time)[-count:]
        done = {each for each, row in oldest.items() if len(found) == count and _by_time(row) <= _by_time(found[0])}
        ends = {each: start for each, start in starts.items() if start > before[each] and each not in done}
        span = min(4 * span, SPAN_MAX)
    return found


def _by_time(row: Row) -> tuple[int, int, int]:
    return row.timestamp_ms, row.partition, row.transaction_id


# ---- sources ---------------------------------------------------------------------------------------------------------------------------------------


class _Source:
    """Partitions, as the command names them, with those of the log that they are. `key`: the only one that is wanted."""

    def __init__(self, client: WaltzClient, topic: TopicHandle | None, partitions: Mapping[int, int], key: bytes | None) -> None:
        self._client = client
        self.topic = topic
        self.partitions = partitions
        self.key = key

    async def marks(self, client: WaltzClient) -> dict[int, int]:
        if self.topic is not None:
            found = await self.topic.high_water_marks()
            return {each: found[each] for each in self.partitions}
        return {each: await client.high_water_mark(log) for each, log in self.partitions.items()}

    async def first(self, client: WaltzClient, partition: int) -> int:
        return await client.first_transaction_id(self.partitions[partition])

    def read(self, positions: Mapping[int, int], until: Mapping[int, int] | None, *, compacted: bool = False) -> AsyncGenerator[Row, None]:
        """After `positions`, up to `until` or without end."""
        wanted = [each for each in positions if until is None or compacted or positions[each] < until[each]]
        return merged([self._one(each, positions[each], None if until is None else until[each], compacted) for each in wanted])

    async def _one(self, partition: int, after: int, until: int | None, compacted: bool) -> AsyncGenerator[Row, None]:
        if self.topic is not None:
            ends = None if until is None else {partition: until}
            async with aclosing(self.topic.feed(partition, after, compacted=compacted, until=ends)) as records:
                async for each in records:
                    yield Row(str(self.topic.name), each.partition, each.transaction_id, each.timestamp_ms, each.header, each.key, each.value or b"")
            return
        async with aclosing(self._client.feed(partition, after)) as feed:
            async for entry in feed:
                yield Row("", partition, entry.transaction_id, entry.timestamp_ms, entry.header, None, entry.data)
                if until is not None and entry.transaction_id >= until:
                    return


async def _source(client: WaltzClient, place: Place) -> _Source:
    """Raises `InvalidSetting` for a key of a topic without keys, `NoSuchTopic`."""
    if place.topic is None:
        if place.key is not None:
            raise InvalidSetting(name="--key", reason="is for topics: --topic namespace/name", nearest=None)
        chosen = range(client.partitions) if place.partition is None else [place.partition]
        return _Source(client, None, {each: each for each in chosen}, None)
    topic = await client.topic(place.topic)
    key = None if place.key is None else os.fsencode(place.key)
    if key is not None and not topic.keyed:
        raise InvalidSetting(name="--key", reason=f"cannot be used: {topic.name} has no keys", nearest=None)
    partition = topic.partition_of(key) if key is not None and place.partition is None else place.partition
    places = range(topic.partitions) if partition is None else [partition]
    return _Source(client, topic, {each: topic.log_partition(each) for each in places}, key)


async def _positions(client: WaltzClient, source: _Source, time: str, option: str) -> dict[int, int]:
    """By partition the id before the first transaction of that time or later."""
    time_ms = parse_time(option, time, WallClock().now_ms())
    return {each: await client.position_at(log, time_ms) - 1 for each, log in source.partitions.items()}


# ---- reading ---------------------------------------------------------------------------------------------------------------------------------------


async def _rows(client: WaltzClient, source: _Source, span: Span) -> AsyncGenerator[Row, None]:
    if span.compacted and source.topic is None:
        raise InvalidSetting(name="--compacted", reason="is for topics: --topic namespace/name", nearest=None)
    if len(source.partitions) > 1 and span.after is not None:
        raise InvalidSetting(name="--after", reason="needs --partition: each partition has its own ids", nearest=None)
    marks = await source.marks(client)
    until = None if span.follow else marks
    if span.to_time is not None:
        before = await _positions(client, source, span.to_time, "--to-time")
        until = {each: min(mark, before[each]) for each, mark in marks.items()}
    if span.from_time is not None:
        starts = await _positions(client, source, span.from_time, "--from-time")
    else:
        starts = dict.fromkeys(source.partitions, -1 if span.after is None else span.after)
        for each, position in starts.items():
            await _expect_within(client, source.partitions[each], position, marks[each])

    def read(positions: Mapping[int, int]) -> AsyncGenerator[Row, None]:
        return source.read(positions, until, compacted=span.compacted)

    log_partitions = {log: each for each, log in source.partitions.items()}
    async with aclosing(_from_what_is_kept(read, starts, log_partitions, asked=span.after is not None)) as rows:
        async for row in rows:
            yield row


async def _expect_within(client: WaltzClient, partition: int, after: int, mark: int) -> None:
    """Raises `OutOfRange` for a position above the end of a partition of the log: waiting there for what comes would hide a mistake."""
    if after > mark:
        raise OutOfRange(partition=partition, asked=after + 1, first=await client.first_transaction_id(partition), last=mark)


async def _from_what_is_kept(
    read: Callable[[Mapping[int, int]], AsyncGenerator[Row, None]], positions: dict[int, int], of_log: Mapping[int, int], *, asked: bool
) -> AsyncGenerator[Row, None]:
    """From the first transaction that each partition still has. A message says if older ones were trimmed. A transaction that is trimmed during the
    read is an error, and so is a requested one that does not exist. `of_log`: the partitions by those of the log, which errors name."""
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
            print_line(f"partition {partition} begins at transaction {error.first}: retention removed what came before", file=sys.stderr)
