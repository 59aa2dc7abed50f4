"""`waltz subscriber`: which subscribers are registered, how far behind each is, and what is kept for it; removes one that is gone permanently."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final  # Any: JSON values

from waltz_log.cli.connecting import reached
from waltz_log.cli.partition_ranges import parse_ranges
from waltz_log.cli.printing import print_data, print_line, print_result, print_table
from waltz_log.cli.times import parse_time
from waltz_log.cli.watching import watched
from waltz_log.client.feed.subscriber_entries import remove_entry, set_entry_marks, subscriber_entries
from waltz_log.client.inspection.time_positions import position_at
from waltz_log.client.inspection.usable_bounds import usable_bounds
from waltz_log.client.owners.owners import Owners
from waltz_log.core.topics.subscribers import Subscriber, UnreadableSubscriber
from waltz_log.errors import InvalidRequest, InvalidSetting, OutOfRange, Unavailable
from waltz_log.exit_codes import OK
from waltz_log.outside_text import printable
from waltz_log.processes.clock import WallClock

__all__ = ["described", "listing", "place", "remove", "show", "subscriber_facts"]


RUNNING_S: Final = 60
"""A subscriber that was seen since is probably running. Clients report their marks more often."""


async def listing(address: str, *, output: str, every_s: float | None, timeout_s: float) -> int:
    async with reached(address, timeout_s) as owners:

        async def once() -> int:
            known, unreadable = await subscriber_entries(owners, timeout_s)
            show(await subscriber_facts(owners, known, now_ms=WallClock().now_ms()), output)
            for each in unreadable:
                advice = "`waltz subscriber remove` removes the entry"
                print(f"waltz: {printable(each.name)} is not shown and holds nothing: {each.reason}; {advice}", file=sys.stderr)
            return OK

        return await watched(once, every_s=every_s, output=output)


async def remove(address: str, name: str, *, dry_run: bool, output: str, timeout_s: float) -> int:
    async with reached(address, timeout_s) as owners:
        gone = await remove_entry(owners, name, timeout_s, dry_run=dry_run)
    if isinstance(gone, UnreadableSubscriber):
        if output != "table":
            print_data({"name": gone.name, "removed": not dry_run, "unreadable": gone.reason}, output)
        else:
            print_line(f"{'Would remove' if dry_run else 'Removed'} {printable(gone.name)}, an entry that was not a valid subscriber: {gone.reason}")
    elif output != "table":
        print_data({"name": gone.name, "removed": not dry_run, "marks": {str(each): mark for each, mark in sorted(gone.marks.items())}}, output)
    else:
        print_line(f"{'Would remove' if dry_run else 'Removed'} {gone.name}: retention keeps nothing for it above {_marks(gone)}")
    return OK


async def place(address: str, name: str, partitions: str | None, to: str, *, dry_run: bool, output: str, timeout_s: float) -> int:
    """Sets where a subscriber reads on. `to`: `earliest`, `latest`, the id of the next transaction that it reads, or a time. `partitions`: None for
    all of its own. Raises `InvalidSetting`, `InvalidRequest`, and `OutOfRange` for a transaction that is trimmed or not committed."""
    chosen = None if partitions is None else parse_ranges("--partition", partitions)
    async with reached(address, timeout_s) as owners:
        known, _ = await subscriber_entries(owners, timeout_s)
        before = next((each for each in known if each.name == name), None)
        if before is None:
            raise InvalidRequest(reason=f"no such subscriber: {name}; it was never registered, or removed")
        wanted = tuple(sorted(before.marks)) if chosen is None else chosen
        foreign = sorted(set(wanted) - set(before.marks))
        if foreign:
            raise InvalidRequest(reason=f"subscriber {name} is not registered for partition {foreign[0]}")
        if to.isdecimal() and len(wanted) > 1:
            raise InvalidSetting(name="--to", reason="needs --partition for an id: each partition has its own ids", nearest=None)
        marks = await _positions(owners, wanted, to, timeout_s)
        if not dry_run:
            await set_entry_marks(owners, name, marks, timeout_s)
    silent_s = max(0, WallClock().now_ms() - before.seen_ms) // 1000
    if silent_s < RUNNING_S:
        advice = "stop it before, because a running subscriber reports its own position again"
        print_line(f"waltz: {name} was last seen {silent_s} s ago; {advice}", file=sys.stderr)
    done = "Would set" if dry_run else "Set"
    lines = [f"{done} {name} partition {each}: next transaction {mark + 1}, before {before.marks[each] + 1}" for each, mark in marks.items()]
    rows = [{"partition": each, "mark": mark, "mark_before": before.marks[each]} for each, mark in marks.items()]
    print_result({"name": name, "dry_run": dry_run, "partitions": rows}, lines, output)
    return OK


async def _positions(owners: Owners, partitions: Sequence[int], to: str, timeout_s: float) -> dict[int, int]:
    """By partition the mark, the transaction before the next one that is read."""
    bounds = await usable_bounds(owners)
    found = {}
    for partition in partitions:
        bound = bounds.get(partition)
        if bound is None:
            raise Unavailable(reason=f"no owner of partition {partition} answers")
        first, last = bound.first_transaction_id, bound.high_water_mark
        if to == "earliest":
            asked = first
        elif to == "latest":
            asked = last + 1
        elif to.isdecimal():
            asked = int(to)
        else:
            asked = max(first, await position_at(owners, partition, parse_time("--to", to, WallClock().now_ms()), timeout_s))
        if not first <= asked <= last + 1:
            raise OutOfRange(partition=partition, asked=asked, first=first, last=last)
        found[partition] = asked - 1
    return found


def _marks(subscriber: Subscriber) -> str:
    return ", ".join(f"{mark} of partition {partition}" for partition, mark in sorted(subscriber.marks.items())) or "anything"


async def subscriber_facts(owners: Owners, found: Sequence[Subscriber], *, now_ms: int) -> list[dict[str, Any]]:
    """The state of each of these subscribers, ordered by name."""
    bounds = await usable_bounds(owners)
    marks = {partition: bound.high_water_mark for partition, bound in bounds.items()}
    firsts = {partition: bound.first_transaction_id for partition, bound in bounds.items()}
    topics = {each: f"{topic.name}/{at}" for topic in owners.catalogue.topics.values() for at, each in enumerate(topic.partitions)}
    return [described(each, marks, firsts, topics, now_ms) for each in sorted(found, key=lambda each: each.name)]


def described(
    subscriber: Subscriber, high_water_marks: Mapping[int, int], firsts: Mapping[int, int], topics: Mapping[int, str], now_ms: int
) -> dict[str, Any]:
    """`lag_transactions`: committed and not reported as read; None if no owner answers. `kept_for_it`: what is retained of what it has not read."""
    return {
        "name": subscriber.name,
        "labels": dict(subscriber.labels),
        "created": _date(subscriber.created_ms),
        "seen": _date(subscriber.seen_ms),
        "silent_s": max(0, (now_ms - subscriber.seen_ms) // 1000),
        "partitions": [
            {
                "partition": partition,
                "topic": topics.get(partition, ""),
                "mark": mark,
                "high_water_mark": (high := high_water_marks.get(partition)),
                "lag_transactions": None if high is None else max(0, high - mark),
                "first_retained": firsts.get(partition),
            }
            for partition, mark in sorted(subscriber.marks.items())
        ],
    }


def show(found: Sequence[Mapping[str, Any]], output: str) -> None:
    if output != "table":
        print_data(list(found), output)
        return
    print_table(
        ("subscriber", "partition", "topic", "mark", "lag", "first retained", "last seen", "labels"),
        [_row(each, place) for each in found for place in each["partitions"] or [{}]],
    )


def _row(each: Mapping[str, Any], place: Mapping[str, Any]) -> Sequence[str]:
    labels = " ".join(f"{name}={value}" for name, value in each["labels"].items())
    lag = place.get("lag_transactions")
    first = place.get("first_retained")
    return (
        str(each["name"]),
        str(place.get("partition", "")),
        str(place.get("topic", "")),
        str(place.get("mark", "")),
        "not known" if lag is None else str(lag),
        "" if first is None else str(first),
        f"{each['seen']} ({each['silent_s']} s ago)",
        labels,
    )


def _date(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="seconds")
