"""`waltz subscribers`: which subscribers are registered, how far behind each is, and what is kept for it; removes one that is gone permanently."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any  # JSON values

from waltz_log.cli.printing import print_data, print_line, print_table
from waltz_log.cli.watching import watched
from waltz_log.coordination.subscribers import read_retained, read_subscriber_entries, read_subscribers, remove_subscriber
from waltz_log.coordination.survey import survey
from waltz_log.coordination.topics import read_catalogue
from waltz_log.core.ports import Coordinator, Network
from waltz_log.core.topics.subscribers import Subscriber, UnreadableSubscriber
from waltz_log.exit_codes import OK
from waltz_log.outside_text import printable
from waltz_log.processes.clock import WallClock

__all__ = ["described", "listing", "remove", "show", "subscriber_facts"]


async def listing(address: str, *, output: str, every_s: float | None, timeout_s: float) -> int:
    from waltz_log.transport.grpc import GrpcNetwork

    async with _connected(address, timeout_s) as coordinator:

        async def once() -> int:
            show(await subscriber_facts(coordinator, GrpcNetwork(), address, now_ms=WallClock().now_ms()), output)
            _, unreadable = await read_subscriber_entries(coordinator)
            for each in unreadable:
                advice = "`waltz subscribers remove` removes the entry"
                print(f"waltz: {printable(each.name)} is not shown and holds nothing: {each.reason}; {advice}", file=sys.stderr)
            return OK

        return await watched(once, every_s=every_s, output=output)


async def remove(address: str, name: str, *, dry_run: bool, output: str, timeout_s: float) -> int:
    async with _connected(address, timeout_s) as coordinator:
        gone = await remove_subscriber(coordinator, name, dry_run=dry_run)
    if isinstance(gone, UnreadableSubscriber):
        if output != "table":
            print_data({"name": gone.name, "removed": not dry_run, "unreadable": gone.reason}, output)
        else:
            print_line(f"{'would be' if dry_run else 'is'} removed: {printable(gone.name)}, an entry that was no subscriber: {gone.reason}")
    elif output != "table":
        print_data({"name": gone.name, "removed": not dry_run, "marks": {str(each): mark for each, mark in sorted(gone.marks.items())}}, output)
    else:
        print_line(f"{'would be' if dry_run else 'is'} removed: {gone.name}; nothing is kept for it above {_marks(gone)}")
    return OK


def _marks(subscriber: Subscriber) -> str:
    return ", ".join(f"{mark} of partition {partition}" for partition, mark in sorted(subscriber.marks.items())) or "anything"


async def subscriber_facts(coordinator: Coordinator, network: Network, address: str, *, now_ms: int) -> list[dict[str, Any]]:
    """The state of each subscriber, ordered by name. Raises `ClusterUnavailable` if there is no cluster."""
    found = await read_subscribers(coordinator)
    cluster, catalogue = await survey(coordinator, network, address), await read_catalogue(coordinator)
    marks = {each.partition: each.high_water_mark for each in cluster.partitions}
    topics: dict[int, str] = {}
    for each in found:
        for partition in each.marks:
            owner = catalogue.owner_of(partition)
            topics[partition] = "" if owner is None else f"{owner[0].name}/{owner[1]}"
    firsts = {partition: (await read_retained(coordinator, partition)).first for partition in sorted(topics)}
    return [described(each, marks, firsts, topics, now_ms) for each in found]


def described(
    subscriber: Subscriber, high_water_marks: Mapping[int, int | None], firsts: Mapping[int, int], topics: Mapping[int, str], now_ms: int
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
                "first_retained": firsts.get(partition, 0),
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
    return (
        str(each["name"]),
        str(place.get("partition", "")),
        str(place.get("topic", "")),
        str(place.get("mark", "")),
        "not known" if lag is None else str(lag),
        str(place.get("first_retained", "")),
        f"{each['seen']} ({each['silent_s']} s ago)",
        labels,
    )


def _date(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="seconds")


@asynccontextmanager
async def _connected(address: str, timeout_s: float) -> AsyncIterator[Coordinator]:
    from waltz_log.coordination.coordinator import ZooKeeperCoordinator

    coordinator = await ZooKeeperCoordinator.connect(address, timeout_s=timeout_s)
    try:
        yield coordinator
    finally:
        await coordinator.close()
