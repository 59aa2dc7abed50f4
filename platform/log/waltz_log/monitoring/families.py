"""A metric family: its name, kind, labels and meaning, and how its samples are read from statistics. Pure.

Names follow Prometheus' conventions: base units, `_total` for counters. Each label has a bounded number of values: the partitions, replicas and
workers of a node, or words that the code lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from waltz_log.core.status.latency import LatencyStatistics

__all__ = ["Family", "Kind", "Samples", "counter", "gauge", "histogram", "single"]

S = TypeVar("S", contravariant=True)

Kind = Literal["counter", "gauge", "histogram"]

Value = float | LatencyStatistics

Samples = Iterable[tuple[tuple[str, ...], Value | None]]
"""Label values with the value of each sample. None: there is no such sample now."""


@dataclass(frozen=True, slots=True)
class Family(Generic[S]):
    """`meaning`: what the reference page and the `# HELP` line say."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    meaning: str
    read: Callable[[S], Samples]

    def samples(self, statistics: S) -> Iterator[tuple[tuple[str, ...], Value]]:
        for labels, value in self.read(statistics):
            if value is not None:
                yield labels, value


def gauge(name: str, labels: tuple[str, ...], meaning: str, read: Callable[[S], Samples]) -> Family[S]:
    return Family(name, "gauge", labels, meaning, read)


def counter(name: str, labels: tuple[str, ...], meaning: str, read: Callable[[S], Samples]) -> Family[S]:
    return Family(name, "counter", labels, meaning, read)


def histogram(name: str, labels: tuple[str, ...], meaning: str, read: Callable[[S], Mapping[str, LatencyStatistics]]) -> Family[S]:
    return Family(name, "histogram", labels, meaning, lambda statistics: [((key,) if labels else (), each) for key, each in read(statistics).items()])


def single(read: Callable[[S], float | None]) -> Callable[[S], Samples]:
    """The only sample of a family without labels."""
    return lambda statistics: [((), read(statistics))]
