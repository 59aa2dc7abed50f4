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

from waltz_log.cli.connecting import connected
from waltz_log.cli.printing import print_data, print_table
from waltz_log.cli.topics.spark_checkpoints import read_checkpoint
from waltz_log.cli.watching import watched
from waltz_log.coordination.subscribers import read_subscriber_entries
from waltz_log.coordination.survey import Survey, survey
from waltz_log.coordination.topics import read_catalogue
from waltz_log.core.ports import Coordinator, Network
from waltz_log.errors import InvalidRequest, InvalidSetting, WaltzError, exit_code_of
from waltz_log.exit_codes import OK
from waltz_log.extras import install_command, missing_package
from waltz_log.outside_text import printable

__all__ = ["MARKS", "Asked", "Reader", "find_readers", "run"]

MARKS = "waltz.marks"
"""Entry points that read the marks of a table: `delta` is the one of the Delta sink."""

ReadMarks = Callable[[str, str], Mapping[int, int]]
"""Of a path and the cluster key."""


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
    async with connected(address, timeout_s) as (coordinator, network):

        async def show() -> int:
            readers, problems = await find_readers(coordinator, network, address, asked, marks)
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
    raise InvalidSetting(name="--table", reason=f"needs the Delta sink: {install_command('spark')}", nearest=None)


async def find_readers(
    coordinator: Coordinator, network: Network, address: str, asked: Asked, marks: ReadMarks | None
) -> tuple[list[Reader], dict[str, WaltzError | OSError]]:
    """The readers, and why some are missing. Raises `ClusterUnavailable` if there is no cluster, `NoSuchTopic`."""
    found, catalogue = await survey(coordinator, network, address), await read_catalogue(coordinator)
    names: dict[int, str] = {}
    for state in found.partitions:
        owner = catalogue.owner_of(state.partition)
        names[state.partition] = "" if owner is None else f"{owner[0].name}/{owner[1]}"
    chosen: set[int] | None = None
    if asked.topic is not None:
        from waltz_log.core.topics.topic_names import TopicName

        chosen = set(catalogue.find(TopicName.parse(asked.topic)).partitions)
    reader = partial(_reader, found, names, chosen)
    readers: list[Reader] = []
    problems: dict[str, WaltzError | OSError] = {}
    known, unreadable = await read_subscriber_entries(coordinator)
    subscribers = {each.name: each for each in known}
    problems.update({each.name: InvalidRequest(reason=f"the entry is no subscriber: {each.reason}") for each in unreadable if asked.shows(each.name)})
    for name in sorted(subscribers) if asked.all_subscribers else asked.subscribers:
        if name in subscribers:
            readers.append(reader("subscriber", name, subscribers[name].marks))
        elif name not in problems:
            problems[name] = InvalidRequest(reason=f"no such subscriber: {name}")
    for folder in asked.checkpoints:
        try:
            position = await asyncio.to_thread(read_checkpoint, folder)
            if position.cluster_key not in (None, found.key):
                raise InvalidRequest(reason=f"the checkpoint is of another cluster: checkpoint={position.cluster_key} cluster={found.key}")
            readers.append(reader("checkpoint", folder, position.committed, position.planned))
        except (WaltzError, OSError) as error:
            problems[folder] = error
    for table in asked.tables:
        try:
            assert marks is not None
            readers.append(reader("table", table, await asyncio.to_thread(marks, table, found.key)))
        except (WaltzError, OSError) as error:
            problems[table] = error
    return readers, problems


def _reader(
    found: Survey,
    names: Mapping[int, str],
    chosen: set[int] | None,
    kind: str,
    name: str,
    positions: Mapping[int, int],
    running: Mapping[int, int] | None = None,
) -> Reader:
    marks = {each.partition: each.high_water_mark for each in found.partitions}
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
