"""`waltz lag`: how far readers are behind the log. Readers are subscribers, Spark queries by their checkpoint folders, and tables by their marks.

One reader that cannot be read is one sentence; the others are shown all the same.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import entry_points
from typing import Final

from waltz_log.cli.connecting import reached
from waltz_log.cli.printing import print_data, print_table
from waltz_log.cli.topics.spark_checkpoints import read_checkpoint
from waltz_log.cli.watching import watched
from waltz_log.client.feed.subscriber_entries import subscriber_entries
from waltz_log.client.inspection.usable_bounds import usable_bounds
from waltz_log.client.owners.owners import Owners
from waltz_log.client.topics.topic_directory import find_topic
from waltz_log.core.topics.topic_names import TopicName
from waltz_log.errors import InvalidRequest, InvalidSetting, WaltzError, exit_code_of
from waltz_log.exit_codes import OK
from waltz_log.extras import install_advice, missing_package
from waltz_log.outside_text import printable

__all__ = ["MARKS", "Asked", "Reader", "find_readers", "run"]

MARKS = "waltz.marks"
"""Entry points that read the marks of a table: `delta` is the one of the Delta sink."""

CONFIRM_S: Final = 3.0
"""For the servers to confirm the topic with the coordinator. While it is away, the map says what the topic is."""

ReadMarks = Callable[[str, str], Mapping[int, int]]
"""For a path and the cluster key."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the options say. Without any reader, all subscribers are shown."""

    subscribers: Sequence[str] = ()
    checkpoints: Sequence[str] = ()
    tables: Sequence[str] = ()
    topic: str | None = None

    def shows(self, subscriber: str) -> bool:
        return self.all_subscribers or subscriber in self.subscribers

    @property
    def all_subscribers(self) -> bool:
        return not (self.subscribers or self.checkpoints or self.tables)


@dataclass(frozen=True, slots=True)
class Place:
    """One partition of a reader. `position`: the last transaction that it has read; `lag`: committed transactions after it, None if no owner answers.
    `running`: the last transaction of a batch that a query has begun and not completed."""

    partition: int
    topic: str
    position: int
    high_water_mark: int | None
    lag: int | None
    running: int | None = None


@dataclass(frozen=True, slots=True)
class Reader:
    """`kind`: subscriber, checkpoint or table. `lag`: of all its partitions, None if that of one is not known."""

    kind: str
    name: str
    lag: int | None
    places: Sequence[Place]


async def run(address: str, asked: Asked, *, output: str, every_s: float | None, timeout_s: float) -> int:
    marks = _marks_reader() if asked.tables else None
    async with reached(address, timeout_s) as owners:

        async def show() -> int:
            readers, problems = await find_readers(owners, asked, marks, timeout_s)
            _show(readers, output)
            for name, error in problems.items():
                print(f"waltz: {printable(name)} is not shown: {printable(' '.join(str(error).split()))}", file=sys.stderr)
            return exit_code_of(next(iter(problems.values()))) if problems else OK

        return await watched(show, every_s=every_s, output=output)


def _marks_reader() -> ReadMarks:
    """Raises `InvalidSetting` if no package that knows tables is installed."""
    for declared in entry_points(group=MARKS, name="delta"):
        try:
            found: ReadMarks = declared.load()
        except ImportError as error:
            needed = missing_package(error) or f"a package that is not installed: {error}"
            raise InvalidSetting(name="--table", reason=f"needs {needed}", nearest=None) from None
        return found
    raise InvalidSetting(name="--table", reason=f"needs the Delta sink: {install_advice('spark')}", nearest=None)


async def find_readers(
    owners: Owners, asked: Asked, marks: ReadMarks | None, timeout_s: float
) -> tuple[list[Reader], dict[str, WaltzError | OSError]]:
    """The readers, and why some are missing; the lag of a partition of which this client may do nothing is not known. Raises `NoSuchTopic`."""
    high_water_marks = {partition: bound.high_water_mark for partition, bound in (await usable_bounds(owners)).items()}
    key = str(owners.parameters.key)
    names = {each: f"{topic.name}/{at}" for topic in owners.catalogue.topics.values() for at, each in enumerate(topic.partitions)}
    chosen: set[int] | None = None
    if asked.topic is not None:
        chosen = set((await find_topic(owners, TopicName.parse(asked.topic), min(timeout_s, CONFIRM_S))).partitions)
    reader = partial(_reader, high_water_marks, names, chosen)
    readers: list[Reader] = []
    problems: dict[str, WaltzError | OSError] = {}
    if asked.all_subscribers or asked.subscribers:
        try:
            subscribers, wrong = await _subscribers(owners, asked, timeout_s)
        except WaltzError as error:
            problems["the list of subscribers"] = error
        else:
            problems.update(wrong)
            readers += [reader("subscriber", name, marks) for name, marks in subscribers.items()]
    for folder in asked.checkpoints:
        try:
            position = await asyncio.to_thread(read_checkpoint, folder)
            if position.cluster_key not in (None, key):
                raise InvalidRequest(reason=f"the checkpoint is of another cluster: checkpoint={position.cluster_key} cluster={key}")
            readers.append(reader("checkpoint", folder, position.committed, position.planned))
        except (WaltzError, OSError) as error:
            problems[folder] = error
    for table in asked.tables:
        try:
            assert marks is not None
            readers.append(reader("table", table, await asyncio.to_thread(marks, table, key)))
        except (WaltzError, OSError) as error:
            problems[table] = error
    return readers, problems


async def _subscribers(owners: Owners, asked: Asked, timeout_s: float) -> tuple[dict[str, Mapping[int, int]], dict[str, InvalidRequest]]:
    """By name, the marks of those to show, and why others are missing."""
    known, unreadable = await subscriber_entries(owners, timeout_s)
    found = {each.name: each.marks for each in known}
    wrong = {each.name: InvalidRequest(reason=f"the entry is not a valid subscriber: {each.reason}") for each in unreadable if asked.shows(each.name)}
    named = sorted(found) if asked.all_subscribers else asked.subscribers
    missing = [name for name in named if name not in found and name not in wrong]
    return {name: found[name] for name in named if name in found}, wrong | {
        name: InvalidRequest(reason=f"no such subscriber: {name}") for name in missing
    }


def _reader(
    marks: Mapping[int, int],
    names: Mapping[int, str],
    chosen: set[int] | None,
    kind: str,
    name: str,
    positions: Mapping[int, int],
    running: Mapping[int, int] | None = None,
) -> Reader:
    places = []
    for partition, position in sorted(positions.items()):
        if chosen is not None and partition not in chosen:
            continue
        high = marks.get(partition)
        begun = None if running is None or running.get(partition, position) <= position else running[partition]
        lag = None if high is None else max(0, high - position)
        places.append(Place(partition, names.get(partition, ""), position, high, lag, begun))
    lags = [place.lag for place in places]
    return Reader(kind, name, None if None in lags else sum(lag for lag in lags if lag is not None), places)


def _show(readers: Sequence[Reader], output: str) -> None:
    if output != "table":
        print_data([asdict(reader) for reader in readers], output)
        return
    rows: list[Sequence[object]] = []
    for reader in readers:
        for place in reader.places:
            lag = "not known" if place.lag is None else f"{place.lag:,}"
            mark = "no owner" if place.high_water_mark is None else place.high_water_mark
            rows.append((reader.kind, reader.name, place.partition, place.topic, place.position, mark, lag, place.running))
        rows.append((reader.kind, reader.name, "all", "", "", "", "not known" if reader.lag is None else f"{reader.lag:,}", ""))
    print_table(("reader", "name", "partition", "topic", "position", "high-water mark", "lag", "batch under way up to"), rows)
