"""Causes the smoke test's faults: removes and restores what the schedule says, and leaves everything running."""

from __future__ import annotations

from typing import cast

import pytest

from verification.smoke.nemesis import Nemesis
from verification.smoke.schedule import outages
from waltz_log.errors import ClusterUnavailable
from waltz_log.processes.local_cluster import LocalCluster

SERVERS, STORAGES = ["server-0", "server-1", "server-2"], ["storage-0", "storage-1", "storage-2"]


class _Cluster:
    """What a local cluster refuses, this one does too."""

    def __init__(self) -> None:
        self.states = dict.fromkeys(("zookeeper", *SERVERS, *STORAGES), "runs")
        self.unready = 0

    @property
    def ended(self) -> dict[str, int]:
        return {name: -9 for name, state in self.states.items() if state == "ended"}

    def kill(self, name: str) -> None:
        assert self.states[name] != "ended", f"{name} does not run"
        self.states[name] = "ended"

    def start(self, name: str) -> None:
        assert self.states[name] == "ended", f"{name} runs already"
        self.states[name] = "runs"

    def pause(self, name: str) -> None:
        assert self.states[name] == "runs"
        self.states[name] = "stopped"

    def resume(self, name: str) -> None:
        assert self.states[name] == "stopped"
        self.states[name] = "runs"

    def wait_ready(self, timeout_s: float) -> None:
        if self.unready:
            self.unready -= 1
            self.states["server-1"] = "ended"
            raise ClusterUnavailable(address="here", reason="server-1 gave up")
        assert set(self.states.values()) == {"runs"}


def _nemesis(cluster: _Cluster, seed: int = 1) -> Nemesis:
    schedule = outages(seed, servers=SERVERS, storages=STORAGES, rate=2.0)
    return Nemesis(cast(LocalCluster, cluster), schedule)


@pytest.mark.parametrize("step_s", [0.1, 1.0, 7.0])
@pytest.mark.parametrize("seed", range(5))
def test_everything_that_a_fault_removed_comes_back(seed: int, step_s: float) -> None:
    cluster = _Cluster()
    nemesis = _nemesis(cluster, seed)
    now_s = 0.0
    while now_s < 400:
        nemesis.advance(now_s)
        assert nemesis.away == sorted(name for name, state in cluster.states.items() if state != "runs")
        now_s += step_s
    assert {what.split()[1] for what in nemesis.done if what.startswith("killed")} == set(cluster.states)
    nemesis.heal(1.0, lambda line: None)
    assert set(cluster.states.values()) == {"runs"}
    assert nemesis.away == []


def test_who_ended_by_itself_is_started_again_and_counted() -> None:
    cluster = _Cluster()
    nemesis = _nemesis(cluster)
    cluster.kill("storage-1")
    nemesis.advance(0.0)
    assert cluster.states["storage-1"] == "runs"
    assert nemesis.ended_by_itself == {"storage-1": 1}


def test_healing_starts_once_more_who_gave_up_meanwhile_and_ends_where_that_does_not_help() -> None:
    cluster = _Cluster()
    cluster.unready = 2
    _nemesis(cluster).heal(1.0, lambda line: None)
    assert set(cluster.states.values()) == {"runs"}
    cluster.unready = 3
    with pytest.raises(ClusterUnavailable):
        _nemesis(cluster).heal(1.0, lambda line: None)
