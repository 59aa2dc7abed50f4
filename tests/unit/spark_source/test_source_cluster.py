"""The driver's view of a cluster that comes and goes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest

from pyspark_waltz.log_view import CONNECT_TIMEOUT_S, Location, LogView, connect_timeout_s
from pyspark_waltz.offsets import Extent
from pyspark_waltz.options import SourceOptions
from pyspark_waltz.planner import Range, Size
from waltz_log.errors import ClusterKeyMismatch, ClusterUnavailable, InvalidSetting, OutOfRange, Unavailable
from waltz_log.transport.locating import Place, Question

KEY = UUID(int=7)


@dataclass
class Bound:
    high_water_mark: int
    session: int = 1
    first_transaction_id: int = 0
    generation: int = 1


@dataclass
class Parameters:
    key: UUID = KEY
    partitions: int = 2


@dataclass
class FakeCluster:
    """Answers from `bounds`; `troubles` are raised first, one a question. Counts connections that are open."""

    bounds_now: dict[int, Bound]
    parameters: Parameters = field(default_factory=Parameters)
    troubles: list[Exception] = field(default_factory=list)
    refuses: bool = False
    asked: list[tuple[int, ...] | None] = field(default_factory=list)
    opened: int = 0
    reported_replicas: int = 0
    questions: list[Mapping[int, Question]] = field(default_factory=list)
    trimmed: dict[int, int] = field(default_factory=dict)
    timeouts_s: list[float] = field(default_factory=list)

    def connect(self, options: SourceOptions) -> FakeCluster:
        self.timeouts_s.append(connect_timeout_s(options))
        if self.refuses:
            raise ClusterUnavailable(address=options.cluster, reason="nobody")
        return self

    def __enter__(self) -> FakeCluster:
        self.opened += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.opened -= 1

    def bounds(self, partitions: Iterable[int] | None = None) -> dict[int, Bound]:
        self.asked.append(None if partitions is None else tuple(partitions))
        if self.troubles:
            raise self.troubles.pop(0)
        return {p: bound for p, bound in self.bounds_now.items() if partitions is None or p in self.asked[-1]}  # type: ignore[operator]

    def replicas(self) -> dict[int, list[str]]:
        self.reported_replicas += 1
        return {0: ["a", "b"], 1: ["b", "c"]}

    def owners(self) -> dict[int, str | None]:
        return {0: "s", 1: None}

    def locate(self, questions: Mapping[int, Question]) -> dict[int, Place]:
        self.questions.append(questions)
        for p, first in self.trimmed.items():
            if p in questions and questions[p].first < first:
                raise OutOfRange(partition=p, asked=questions[p].first, first=first, last=99)
        return {p: Place((7,) * len(asked.times_ms), 100, asked.first) for p, asked in questions.items()}


class Clock:
    """Time passes only while the view sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.while_asleep: Callable[[], Any] = lambda: None

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.while_asleep()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("time.sleep", clock.sleep)
    return clock


def view(cluster: FakeCluster, clock: Clock, **options: str) -> LogView:
    return LogView(SourceOptions.parse({"cluster": "h:1/w", "fetchTimeoutMs": "5000", **options}), cluster.connect, monotonic=lambda: clock.now)


def test_extents_are_end_exclusive_and_of_the_partitions_asked_for(clock: Clock) -> None:
    cluster = FakeCluster({0: Bound(9), 1: Bound(-1)})
    assert view(cluster, clock).extents() == {0: Extent(0, 10), 1: Extent(0, 0)}
    assert view(cluster, clock, partitions="1").extents() == {1: Extent(0, 0)}
    assert cluster.asked == [None, (1,)]


def test_a_change_of_owner_is_waited_out(clock: Clock) -> None:
    cluster = FakeCluster({0: Bound(9)}, troubles=[Unavailable(reason="moving")] * 3)
    log = view(cluster, clock)
    assert log.extents() == {0: Extent(0, 10)}
    assert cluster.opened == 1
    log.close()
    log.close()
    assert cluster.opened == 0


def test_a_cluster_that_stays_away_ends_the_query_within_the_timeout(clock: Clock) -> None:
    cluster = FakeCluster({0: Bound(9)})
    log = view(cluster, clock)
    log.extents()
    cluster.troubles = [Unavailable(reason="down")] * 1000
    with pytest.raises(Unavailable):
        log.extents()
    assert 4.5 < clock.now < 6


def test_a_cluster_that_was_never_there_and_an_error_that_stays_are_reported_at_once(clock: Clock) -> None:
    with pytest.raises(ClusterUnavailable):
        view(FakeCluster({}, refuses=True), clock).extents()
    with pytest.raises(ClusterKeyMismatch):
        view(FakeCluster({}, troubles=[ClusterKeyMismatch(where="a:1")]), clock).extents()
    assert clock.now == 0


def test_the_first_connection_has_the_time_that_is_given_for_fetches(clock: Clock) -> None:
    cluster = FakeCluster({0: Bound(9)})
    for options in ({"fetchTimeoutMs": "1500"}, {"fetchTimeoutMs": "90000"}, {}):
        LogView(SourceOptions.parse({"cluster": "h:1/w", **options}), cluster.connect, monotonic=lambda: clock.now).extents()
    assert cluster.timeouts_s == [1.5, 90.0, CONNECT_TIMEOUT_S]


def test_a_batch_ahead_of_an_old_bound_waits_for_one_that_reaches_it(clock: Clock) -> None:
    cluster = FakeCluster({0: Bound(9, session=3), 1: Bound(4)})
    log = view(cluster, clock)
    log.extents()
    clock.while_asleep = lambda: cluster.bounds_now.update({0: Bound(20, session=4)})
    extents, locations = log.cover({0: 15})
    assert extents == {0: Extent(0, 21)}
    assert locations == {0: Location(4, ("a", "b"))}
    asked = len(cluster.asked)
    log.cover({0: 21, 1: 5})
    assert len(cluster.asked) == asked, "what is known to reach far enough is not asked again"


def test_a_batch_that_the_log_never_reaches_is_refused_with_what_there_is(clock: Clock) -> None:
    log = view(FakeCluster({0: Bound(9)}), clock)
    with pytest.raises(OutOfRange) as caught:
        log.cover({0: 15})
    assert (caught.value.asked, caught.value.last) == (14, 9)
    assert clock.now > 4.5


def test_a_partition_beyond_the_cluster_and_another_cluster_at_the_address_are_refused(clock: Clock) -> None:
    with pytest.raises(InvalidSetting, match="the cluster has 0 to 1"):
        view(FakeCluster({}), clock, partitions="0-5").extents()
    cluster = FakeCluster({0: Bound(9)})
    log = view(cluster, clock)
    log.extents()
    cluster.parameters = Parameters(key=UUID(int=8))
    cluster.troubles = [Unavailable(reason="gone")]
    with pytest.raises(InvalidSetting, match="has become another one"):
        log.extents()


def test_replicas_are_asked_for_again_only_after_some_seconds(clock: Clock) -> None:
    cluster = FakeCluster({0: Bound(9)})
    log = view(cluster, clock)
    for _ in range(3):
        log.cover({0: 5})
    assert cluster.reported_replicas == 1
    clock.now += 6
    log.cover({0: 5})
    assert cluster.reported_replicas == 2
    log.close()
    log.cover({0: 5})
    assert cluster.reported_replicas == 3


def test_questions_about_places_carry_the_bound_that_they_are_for(clock: Clock) -> None:
    cluster = FakeCluster({0: Bound(9, session=3), 1: Bound(4, session=2)})
    log = view(cluster, clock)
    log.extents()
    assert log.positions_at({}) == {}
    assert log.positions_at({0: 1000, 1: 2000}) == {0: 7, 1: 7}
    assert cluster.questions == [{0: Question(3, 9, (1000,)), 1: Question(2, 4, (2000,))}]
    assert log.measure({1: Range(2, 4, 50)}) == {1: Size(100, 2)}
    assert cluster.questions[-1] == {1: Question(2, 4, (), 2, 4, 50)}


def test_a_range_trimmed_after_the_bound_was_read_is_measured_as_lost(clock: Clock) -> None:
    cluster = FakeCluster({0: Bound(9), 1: Bound(9)}, trimmed={0: 6})
    log = view(cluster, clock)
    log.extents()
    assert log.measure({0: Range(2, 9, 50), 1: Range(2, 9, 50)}) == {0: Size(0, 5), 1: Size(100, 2)}
    assert log.measure({0: Range(2, 4, 50)}) == {0: Size(0, 4)}


def test_owners_are_those_of_the_partitions_asked_for(clock: Clock) -> None:
    log = view(FakeCluster({0: Bound(9), 1: Bound(4)}), clock, partitions="1")
    assert log.owners() == {1: None}
    assert list(log.bounds_of([1])) == [1]
    assert log.bounds_of([]) == {}
