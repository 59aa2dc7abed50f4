"""Probes of nodes under attack, as a kubelet sends them: `/livez`, at the port that only the machine itself reaches (`http.probe_port`)."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from waltz_log.processes.local_cluster import LocalCluster
from waltz_log.processes.ports import HOST, HeldPort, free_port
from waltz_log.server.base.settings import ServerSettings

__all__ = ["LIVEZ_S", "ProbedCluster", "Probes"]

LIVEZ_S: Final = 4.0
"""The command of the liveness probe in `conf/deploy/kubernetes/base` fails after this time."""

PERIOD_S: Final = 1.0

PARTITIONS: Final = 6
"""Of the log: two more than the clients use, which are free for a topic."""


class ProbedCluster(LocalCluster):
    """A secure cluster of one log server and three storage nodes, which answer probes. `workers`: processes of the log server."""

    def __init__(self, directory: Path | str, workers: int) -> None:
        settings = {"workers": workers}
        session_timeout_s = ServerSettings.model_fields["session_timeout_s"].default  # not the short one of a cluster for tests: the machine is busy
        super().__init__(
            directory,
            partitions=PARTITIONS,
            storages=3,
            servers=1,
            session_timeout_s=session_timeout_s,
            secure=True,
            http=True,
            server_settings=settings,
        )
        self._probes: dict[str, HeldPort] = {}

    @property
    def probes(self) -> dict[str, str]:
        """`host:port` of each node's probes, by its name."""
        return {name: f"{HOST}:{held.number}" for name, held in self._probes.items()}

    def program(self, name: str) -> Sequence[str]:
        """A node prefers a variable to its file."""
        if name not in self._probes:
            self._probes[name] = free_port()
        http = json.dumps({"port": 0, "probe_port": self._probes[name].number})
        return ("/usr/bin/env", f"WALTZ_{name.partition('-')[0].upper()}_HTTP={http}", *super().program(name))

    def close(self) -> None:
        super().close()
        for held in self._probes.values():
            held.close()


class Probes:
    """Within the context a thread for each node asks it once a second whether it lives. `addresses`: by the name of the node."""

    def __init__(self, addresses: Mapping[str, str], timeout_s: float = LIVEZ_S, period_s: float = PERIOD_S) -> None:
        self._timeout_s = timeout_s
        self._period_s = period_s
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._probe, args=each, daemon=True) for each in addresses.items()]
        self.answered: Counter[str] = Counter(dict.fromkeys(addresses, 0))
        """By node, the answers in time that said it lives."""
        self.failed: list[str] = []
        """The other probes."""
        self.longest_s = 0.0

    def __enter__(self) -> Self:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        for each in self._threads:
            each.join()

    def _probe(self, name: str, address: str) -> None:
        while not self._ended.is_set():
            began_s, why = time.monotonic(), ""
            try:
                with urllib.request.urlopen(f"http://{address}/livez", timeout=self._timeout_s) as answer:
                    answer.read()
            except OSError as error:
                why = f": {error}"
            needed_s = time.monotonic() - began_s
            self.longest_s = max(self.longest_s, needed_s)
            if why or needed_s > self._timeout_s:
                self.failed.append(f"{name} failed a probe after {needed_s:.1f} s{why}")
            else:
                self.answered[name] += 1
            self._ended.wait(max(0.0, self._period_s - needed_s))
