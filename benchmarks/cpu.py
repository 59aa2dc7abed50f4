"""Processor time by kind of process: the cost of a transaction, independent of other load. On a shared machine, rates measured at different times are
not comparable. Processor time is comparable, apart from cold caches and the speed of the processor, which is reported with it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import psutil

from benchmarks.pace import pace_ns
from waltz_log.processes.local_cluster import LocalCluster

__all__ = ["Processors"]


class Processors:
    """The processor time of one cluster and of this process, which is its client. ZooKeeper is not on the path of a transaction and is left out."""

    def __init__(self, cluster: LocalCluster) -> None:
        pids = cluster.processes
        nodes = {name: psutil.Process(pids[name]) for name in (*cluster.server_names, *cluster.storage_names)}
        self._processes = {name: [process, *process.children(recursive=True)] for name, process in nodes.items()}
        """The processes of each node, with its workers."""
        self.start()

    def each_s(self) -> dict[str, float]:
        """Spent by each node since its start."""
        times = {name: [process.cpu_times() for process in processes] for name, processes in self._processes.items()}
        return {name: sum(each.user + each.system for each in found) for name, found in times.items()}

    def _spent_s(self) -> dict[str, float]:
        found = {"client": time.process_time(), "server": 0.0, "storage": 0.0}
        for name, spent_s in self.each_s().items():
            found[name.partition("-")[0]] += spent_s
        return found

    def start(self) -> None:
        self._pace_ns = pace_ns()
        self._started_s = self._spent_s()

    def spent_us(self, transactions: int) -> dict[str, float]:
        """Since `start`: microseconds a transaction of the client, of all servers and of all storage nodes."""
        return {kind: (now - self._started_s[kind]) * 1e6 / transactions for kind, now in self._spent_s().items()}

    def conditions(self, transactions: int) -> Mapping[str, Any]:
        """Since `start`: microseconds a transaction, all together and by kind of process; those of all servers and of all storage nodes together; and
        the pace of the processor, the mean of before and after."""
        spent_us = self.spent_us(transactions)
        told = ", ".join(f"{kind} {value:.1f}" for kind, value in spent_us.items())
        pace = round((self._pace_ns + pace_ns()) / 2)
        return {"cpu_us_per_txn": round(sum(spent_us.values()), 1), "cpu_us": told, "pace_ns": pace}
