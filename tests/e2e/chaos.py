"""`python -m tests.e2e.chaos --kills 100 [--seed 7]`: drivers, Python workers, storage nodes and log servers killed with SIGKILL while appends go on,
and then every row of the table compared with the log.

`kills` counts the driver's. Each life of a driver ends at one of the gaps of `killed_driver`, on purpose, or anywhere, by a clock that the seed sets.
In between its checkpoint is deleted, or put back to an older state, its limit changes, and a second driver works on the same table. And between lives
people do to the table what `chaos_actions` lists, after each of which every row is compared, too. A seed chooses what happens; how it falls together
is up to the machine.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.e2e.chaos_actions import ACTIONS, actions_of
from tests.e2e.chaos_checker import differences_below_marks, ends_of, held, log_rows, marks_of, not_reached, table_rows
from tests.e2e.chaos_drivers import (
    ANYWHERE,
    CHOICES,
    ENDED_BY_ITSELF,
    ENDS_BORNE,
    INGEST,
    KILLED,
    PATIENCE_S,
    WHERE,
    children,
    end_driver,
    python_processes,
    spark_environment,
    submit,
)
from tests.e2e.chaos_keyed import HEADER, data_of
from tests.e2e.chaos_settling import Settling
from tests.e2e.chaos_tables import TableUser
from tests.e2e.killed_driver import GAPS
from waltz_log.client import ClientSettings, SyncWaltzClient
from waltz_log.client.inspection.inspect import ClusterInspector
from waltz_log.errors import WaltzError
from waltz_log.processes.local_cluster import LocalCluster


class Appender(threading.Thread):
    """Appends until it is stopped, whatever happens to the cluster. What is in the log is for the log to say; this only keeps it growing."""

    def __init__(self, cluster: str, seed: int, *, per_s: float) -> None:
        super().__init__(name="appender", daemon=True)
        self._cluster, self._rng, self._pause_s = cluster, random.Random(seed), 10 / per_s
        self._done = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with SyncWaltzClient(self._cluster, ClientSettings()) as client:
                number = 0
                while not self._done.wait(self._pause_s):
                    futures = []
                    for _ in range(10):
                        number += 1
                        partition, header = self._rng.randrange(client.partitions), number % HEADER
                        data = f"{number} ".encode() + self._rng.randbytes(self._rng.randrange(200))
                        if number % 10 == 0:
                            data, header = data_of(partition, number, self._rng), HEADER
                        futures.append(client.append_nowait(partition, data, header))
                    for future in futures:
                        with suppress(WaltzError):  # rejected or unknown: the log says which
                            future.result(60)
        except BaseException as error:
            self.error = error

    def stop(self) -> None:
        self._done.set()
        self.join(90)
        if self.error is not None:
            raise self.error
        assert not self.is_alive()


@dataclass
class Reported:
    """What happened, for the summary."""

    driver: Counter[str] = field(default_factory=Counter)
    engines: Counter[str] = field(default_factory=Counter)
    """What was chosen for each driver."""
    others: Counter[str] = field(default_factory=Counter)
    checkpoints: Counter[str] = field(default_factory=Counter)
    exits: Counter[int] = field(default_factory=Counter)
    actions: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        counted: dict[str, Mapping[Any, int]] = {
            "driver kills": self.driver,
            "engines": self.engines,
            "other kills": self.others,
            "checkpoints": self.checkpoints,
            "drivers that ended by themselves": self.exits,
        }
        lines = [
            f"{name}: {sum(counts.values())} ({', '.join(f'{key} {n}' for key, n in sorted(counts.items()))})"
            for name, counts in counted.items()
            if counts
        ]
        lines += [f"actions: {sum(self.actions.values())}"] if self.actions else []
        return "\n".join([*lines, *(f"  {count} {action}" for action, count in sorted(self.actions.items()))])


def lives_of(kills: int, rng: random.Random) -> list[str]:
    """How each life of the driver ends: every gap as often as the others, and as many anywhere as at one gap."""
    found = [(*GAPS, ANYWHERE)[number % (len(GAPS) + 1)] for number in range(kills)]
    rng.shuffle(found)
    return found


class Chaos:
    """One log, one table, and what is done to them. `run` ends with the table compared."""

    def __init__(self, directory: Path, seed: int, *, partitions: int = 3, say: bool = False) -> None:
        self._directory, self._rng, self._say = directory, random.Random(seed), say
        self._seed, self._partitions = seed, partitions
        self.table, self.checkpoint = directory / "table", directory / "checkpoint"
        self._last_words, self._log = directory / "last-words", directory / "drivers.log"
        self._older = directory / "older-checkpoint"
        self.reported = Reported()
        self._cluster: LocalCluster
        self._key = ""
        self._settling: Settling

    def run(self, lives: Sequence[str], *, strikes: int, actions: Sequence[str] = (), per_s: float = 100.0) -> list[str]:
        """What was wrong after any of the actions, and after all these lives, `strikes` of which see other processes killed as well."""
        struck = set(self._rng.sample(range(len(lives)), min(strikes, len(lives))))
        acting = {1 + number * (len(lives) - 1) // len(actions): number for number in range(len(actions))}
        with LocalCluster(self._directory / "log", partitions=self._partitions, servers=2, session_timeout_s=2.0) as self._cluster:
            with ClusterInspector(self._cluster.cluster) as inspector:
                self._key = str(inspector.parameters.key)
            user = TableUser(self.table, self._key, random.Random(self._rng.random()))
            self._settling = Settling(user, self._cluster.cluster, self._key, self._directory, self.checkpoint, self._rng, self._announce)
            self.reported.actions = self._settling.found.outcomes
            appender = Appender(self._cluster.cluster, self._seed, per_s=per_s)
            appender.start()
            for number, end in enumerate(lives):
                self._tamper_with_checkpoint(number, len(lives))
                if number in acting:
                    self._settling.act(actions[acting[number]])
                self._live(number, end, struck=number in struck)
            appender.stop()
            self._race()
            self.reported.exits += self._settling.found.exits
            table, log = held(self.table, self._key, self._partitions), log_rows(self._cluster.cluster)
            deleted, foreign = user.edits.at(table.version)
            behind = not_reached(ends_of(log), table.marks)
            return self._settling.found.wrong + behind + differences_below_marks(log, table, deleted=deleted, foreign=foreign)

    def _live(self, number: int, end: str, *, struck: bool) -> None:
        """One life, from submission to its end. A life that ends by itself (a killed planner ends its query) is followed by another."""
        for _ in range(ENDS_BORNE):
            self._announce(f"life {number}: ends at {end}")
            environment = spark_environment(WALTZ_TEST_GAP=end, WALTZ_TEST_LAST_WORDS=str(self._last_words))
            words = self._words()
            script = INGEST if end == ANYWHERE else KILLED
            driver = submit(script, *self._arguments(self.checkpoint), log=self._log, environment=environment)
            try:
                if end == ANYWHERE or struck:
                    self._wait_for_progress(driver)
                if struck:
                    self._strike(driver)
                if end == ANYWHERE:
                    time.sleep(self._rng.uniform(0, 1.5))
                    self._kill_driver(driver)
                code = driver.wait(PATIENCE_S)
            finally:
                end_driver(driver)
            if code == -signal.SIGKILL:
                if end != ANYWHERE:
                    assert self._words() == [*words, end], "the driver died at another place than it was told to"
                    self._check_gap(end)
                self.reported.driver[end] += 1
                return
            if code not in ENDED_BY_ITSELF:
                raise AssertionError(f"a driver ended by itself with code {code}, see {self._log}:\n{self._log.read_text()[-3000:]}")
            self.reported.exits[code] += 1
        raise AssertionError(f"{ENDS_BORNE} drivers in a row ended by themselves, see {self._log}:\n{self._log.read_text()[-3000:]}")

    def _check_gap(self, end: str) -> None:
        """That the state on disk is the gap's: the last batch in the offset log, the table's mark of it, the checkpoint."""
        planned, done = _last(self.checkpoint / "offsets"), _last(self.checkpoint / "commits")
        if end == "offsets":
            assert planned == done, f"batch {planned} was planned already"
        else:
            assert planned == done + 1, f"batch {planned} is not between its plan and its checkpoint, which is at {done}"

    def _arguments(self, checkpoint: Path, trigger: str = "50 milliseconds", limits: Sequence[int] = (20, 75, 300, 1000)) -> list[str]:
        limit, engine = self._rng.choice(limits), self._rng.choice(CHOICES)
        self.reported.engines[engine] += 1
        return [
            *(f"--cluster={self._cluster.cluster}", f"--table={self.table}", f"--checkpoint={checkpoint}"),
            *(f"--trigger={trigger}", f"--max-transactions-per-trigger={limit}", f"--engine={engine}", WHERE, "--verbose"),
        ]

    def _words(self) -> list[str]:
        return self._last_words.read_text().split() if self._last_words.exists() else []

    def _wait_for_progress(self, driver: subprocess.Popen[bytes]) -> None:
        """Until the table moved, or the driver is gone."""
        before, deadline = marks_of(self.table, self._key), time.monotonic() + PATIENCE_S
        while driver.poll() is None and marks_of(self.table, self._key) == before:
            assert time.monotonic() < deadline, "the driver gets nowhere"
            time.sleep(0.1)

    def _strike(self, driver: subprocess.Popen[bytes]) -> None:
        """Kills something else than the driver; storage nodes and servers come back."""
        kind = self._rng.choice(("worker", "storage", "server"))
        time.sleep(self._rng.uniform(0, 1))
        if kind == "worker":
            workers = python_processes(driver.pid)
            if not workers:
                return
            with suppress(psutil.NoSuchProcess):
                self._rng.choice(workers).kill()
        else:
            name = self._rng.choice(self._cluster.storage_names if kind == "storage" else self._cluster.server_names)
            self._cluster.kill(name)
            time.sleep(self._rng.uniform(0, 1))
            self._cluster.start(name)
        self._announce(f"killed a {kind}")
        self.reported.others[kind] += 1

    def _kill_driver(self, driver: subprocess.Popen[bytes]) -> None:
        """The JVM and the Python process are one driver; now and then only the JVM goes, and its other half notices."""
        python = [] if self._rng.random() < 0.3 else children(driver.pid)
        driver.kill()
        for process in python:
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def _tamper_with_checkpoint(self, number: int, lives: int) -> None:
        """A third of the way in a copy is kept, which comes back at two thirds; in the middle the checkpoint is deleted."""
        if number == lives // 3 and self.checkpoint.exists():
            shutil.rmtree(self._older, ignore_errors=True)
            shutil.copytree(self.checkpoint, self._older)
        elif number == lives // 2 and self.checkpoint.exists():
            shutil.rmtree(self.checkpoint)
            self.reported.checkpoints["deleted"] += 1
        elif number == 2 * lives // 3 and self._older.exists():
            shutil.rmtree(self.checkpoint, ignore_errors=True)
            self._older.rename(self.checkpoint)
            self.reported.checkpoints["older"] += 1
            self._settling.older_checkpoint()

    def _race(self) -> None:
        """Two drivers land what is left, each with a checkpoint of its own; in batches that are larger the longer the log has become."""
        with SyncWaltzClient(self._cluster.cluster) as client:
            for number in range(300):
                client.append_nowait(number % self._partitions, b"the last %d" % number)
            client.flush()
        with ClusterInspector(self._cluster.cluster) as inspector:
            transactions = sum(bound.high_water_mark + 1 for bound in inspector.bounds().values())
        limits = [max(300, transactions // batches) for batches in (100, 30)]
        places = (self.checkpoint, self._directory / "rival")
        racing = [submit(INGEST, *self._arguments(place, "available-now", limits), log=self._log) for place in places]
        try:
            codes = [driver.wait(PATIENCE_S) for driver in racing]
        finally:
            for driver in racing:
                end_driver(driver)
        assert codes == [0, 0], f"a racing driver failed, see {self._log}:\n{self._log.read_text()[-3000:]}"

    def _announce(self, text: str) -> None:
        if self._say:
            print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def _last(folder: Path) -> int:
    return max((int(path.name) for path in folder.iterdir() if path.name.isdecimal()), default=-1) if folder.exists() else -1


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.e2e.chaos",
        description="Kills a Spark driver and all around it, does to its table what people do, and compares every row.",
    )
    parser.add_argument(
        "--kills",
        type=int,
        default=100,
        help="of the driver (100); also a third as many of other processes, and an action between any two",
    )
    parser.add_argument("--seed", type=int, default=None, help="what happens; another each time where it is not given")
    parser.add_argument("--actions", nargs="*", choices=sorted(ACTIONS), default=(), help="to do instead of those that the seed draws")
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1_000_000)
    print(f"seed {seed}", flush=True)
    directory = Path(tempfile.mkdtemp(prefix="waltz-chaos-"))
    chaos = Chaos(directory, seed, say=True)
    began_s = time.monotonic()
    drawn = arguments.actions or actions_of(arguments.kills, random.Random(seed))
    wrong = chaos.run(lives_of(arguments.kills, random.Random(seed)), strikes=arguments.kills // 3, actions=drawn)
    print(chaos.reported)
    print(f"{len(table_rows(chaos.table))} rows, {time.monotonic() - began_s:.0f} s")
    for line in wrong:
        print(f"wrong: {line}")
    if wrong:
        print(f"seed {seed}; everything is kept in {directory}")
        return 1
    shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
