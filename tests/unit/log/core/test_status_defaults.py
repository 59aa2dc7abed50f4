"""A part of a status that a node does not report, such as that of an older version, adds nothing to the sums and is no extreme."""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass
from types import ModuleType

import pytest

from waltz_log.core.status import client_statistics, latency, server_statistics, storage_statistics, trace_statistics, worker_statistics

MODULES = (client_statistics, latency, server_statistics, storage_statistics, trace_statistics, worker_statistics)
UNKNOWN_IDS = -1
"""The default of an id that is not known."""

FINE = {"ReplicaStatistics.counts", "ConflictStatistics.remembered", "OwnerStatistics.exact", "NodeStatistics.writable"}
"""What is true unless a node reports that something is wrong."""


def _defaults(module: ModuleType) -> list[tuple[str, object]]:
    snapshots = [each for each in vars(module).values() if is_dataclass(each) and isinstance(each, type) and each.__module__ == module.__name__]
    return [(f"{cls.__name__}.{each.name}", each.default) for cls in snapshots for each in fields(cls) if each.default is not MISSING]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rpartition(".")[2])
def test_a_number_that_is_not_reported_is_zero_or_an_unknown_id(module: ModuleType) -> None:
    numbers = {name: value for name, value in _defaults(module) if isinstance(value, int | float) and not isinstance(value, bool)}
    assert {name: value for name, value in numbers.items() if value not in (0, UNKNOWN_IDS)} == {}
    assert {name for name, value in _defaults(module) if value is True} <= FINE


def test_there_are_such_numbers() -> None:
    assert dict(_defaults(server_statistics))["FollowerStatistics.refused"] == 0
