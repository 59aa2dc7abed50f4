"""Does to a table and its checkpoint what `ACTIONS` name, with real drivers, and goes on until the table holds what the log held by then.

A driver that ends with an error of the sink is followed: what the error says is done, and another driver is started. What was wrong is kept, so that
the run can go on.
"""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e.chaos_actions import ACTIONS, OLDER, START, Action, follow, judge, outcome_of, reported_in
from tests.e2e.chaos_checker import differences_below_marks, held, log_rows, marks_of
from tests.e2e.chaos_drivers import (
    AUDIT,
    CHOICES,
    ENDED_BY_ITSELF,
    ENDS_BORNE,
    INGEST,
    KILLED,
    PATIENCE_S,
    WHERE,
    end_driver,
    spark_environment,
    submit,
)
from tests.e2e.chaos_keyed import KeyedTable, log_entries
from tests.e2e.chaos_tables import TableUser, known_id, table_id
from tests.e2e.killed_driver import PAUSE
from waltz_log.client import SyncWaltzClient
from waltz_log.errors import WaltzError
from waltz_log.exit_codes import REFUSED, USAGE

__all__ = ["Settling", "Settlings"]

GROWN = 300
"""Transactions that the log gets after a constraint was added, some of which violate it."""

BATCHES = 12
"""So many batches at least catch up with the log, however long it has become."""


@dataclass
class Settlings:
    """What was done to the tables and what came of it."""

    outcomes: Counter[str] = field(default_factory=Counter)
    exits: Counter[int] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


class Settling:
    def __init__(
        self, user: TableUser, cluster: str, cluster_key: str, directory: Path, checkpoint: Path, rng: random.Random, say: Callable[[str], None]
    ) -> None:
        self._user, self._cluster, self._key, self._directory = user, cluster, cluster_key, directory
        self._checkpoint, self._rng, self._say = checkpoint, rng, say
        self._log, self._last_words = directory / "settling.log", directory / "pauses"
        self._others = 0
        self._started_at = 0
        """Where in the log the text of the newest driver begins."""
        self.found = Settlings()

    def act(self, name: str) -> None:
        action = ACTIONS[name]
        if action.when == "keyed":
            self._say(f"action: {name}")
            self._count(name, self._fill_keyed())
            return
        if not self._is_filled():
            self._settle(f"before {name}", START, None, restarted=False)
        self._say(f"action: {name}")
        driver, restarted = None, False
        if action.when != "stopped":
            driver, restarted = self._act_beside(action)
        else:
            self._act_alone(action)
        self._count(name, self._settle(name, action, driver, restarted=restarted))

    def older_checkpoint(self) -> None:
        """After the checkpoint of an earlier time was put back. Nothing is done where it names the table that is there."""
        if known_id(self._checkpoint, self._user.path) != table_id(self._user.path):
            self._count("older checkpoint", self._settle("older checkpoint", OLDER, None, restarted=False))

    def _count(self, name: str, outcome: str) -> None:
        self._say(f"{name}: {outcome}")
        self.found.outcomes[f"{name}: {outcome}"] += 1

    def _is_filled(self) -> bool:
        """Whether a checkpoint is there that filled the table that is there with a batch or more."""
        known = known_id(self._checkpoint, self._user.path)
        commits = [path for path in (self._checkpoint / "commits").glob("*") if path.name.isdecimal()]
        return bool(commits) and bool(known) and known == table_id(self._user.path)

    def _act_beside(self, action: Action) -> tuple[subprocess.Popen[bytes] | None, bool]:
        """The driver that the action was done beside; none, and True, where that was killed before it could notice."""
        assert action.act is not None
        for _ in range(ENDS_BORNE):
            paused = action.when == "committing"
            driver = self._start(gap=PAUSE if paused else "")
            try:
                ready = self._wait_for_pause(driver) if paused else self._wait_for_progress(driver)
                if ready:
                    action.act(self._user)
                    self._go().touch()
                    if not paused and self._rng.random() < 0.25:
                        end_driver(driver)
                    return (None, True) if driver.poll() is not None else (driver, False)
            except BaseException:
                end_driver(driver)
                raise
            self.found.exits[driver.wait()] += 1
        raise AssertionError(f"{ENDS_BORNE} drivers in a row ended by themselves, see {self._log}:\n{self._log.read_text()[-3000:]}")

    def _act_alone(self, action: Action) -> None:
        if action.act is not None:
            action.act(self._user)
        if action.checkpoint:
            self._remove_checkpoint(ahead=action.checkpoint == "ahead")

    def _settle(self, name: str, action: Action, driver: subprocess.Popen[bytes] | None, *, restarted: bool) -> str:
        """Until the table holds what the log holds now. Keeps what is wrong, and gives what came of it."""
        target, reported, wrong, ends = self._log_marks(), list[str](), list[str](), 0
        while True:
            driver = driver or self._start()
            try:
                code = self._wait_for(driver, target)
            finally:
                end_driver(driver)
            driver = None
            if code is None:
                break
            with self._log.open("rb") as file:
                file.seek(self._started_at)
                failure = reported_in(file.read().decode(errors="replace"))
            if code in (REFUSED, USAGE) and failure is not None and len(reported) < 3:
                self._say(f"{name}: {': '.join(failure)}")
                reported.append(failure[0])
                wrong += follow(*failure, self._user, self._checkpoint)
            elif code in ENDED_BY_ITSELF and ends < ENDS_BORNE:
                self._say(f"{name}: a driver ended by itself with code {code}")
                self.found.exits[code] += 1
                ends, restarted = ends + 1, True
            else:
                raise AssertionError(f"{name}: a driver ended by itself with code {code}, see {self._log}:\n{self._log.read_text()[-3000:]}")
        table = held(self._user.path, self._key, len(target))
        deleted, foreign = self._user.edits.at(table.version)
        wrong += judge(action, reported, restarted=restarted)
        wrong += differences_below_marks(log_rows(self._cluster), table, deleted=deleted, foreign=foreign)
        self.found.wrong += [f"after {name}: {line}" for line in wrong]
        for line in wrong:
            self._say(f"wrong after {name}: {line}")
        return outcome_of(reported) if not wrong else "wrong"

    def _remove_checkpoint(self, *, ahead: bool) -> None:
        """Of a query that fills another table from the same log: `ahead` one that reads to its end, otherwise one that dies after a batch."""
        self._others += 1
        other = self._directory / f"other-{self._others}"
        for _ in range(ENDS_BORNE):
            if ahead:
                driver = self._start(other / "table", other / "checkpoint", once=True)
            else:
                driver = self._start(other / "table", other / "checkpoint", gap="checkpoint")
            try:
                code = driver.wait(PATIENCE_S)
            finally:
                end_driver(driver)
            if (code == 0) == ahead and code not in ENDED_BY_ITSELF:
                break
            self.found.exits[code] += 1
        else:
            raise AssertionError(f"{ENDS_BORNE} drivers in a row ended by themselves, see {self._log}:\n{self._log.read_text()[-3000:]}")
        shutil.rmtree(self._checkpoint, ignore_errors=True)
        (other / "checkpoint").rename(self._checkpoint)
        shutil.rmtree(other)

    def _fill_keyed(self) -> str:
        """A table by key to the end of the log, three times: as it is, after a constraint was added and a driver killed, and by an audit."""
        self._others += 1
        keyed = KeyedTable(self._directory / f"other-{self._others}", self._cluster, self._key)
        self._end_of(keyed, INGEST)
        keyed.constrain()
        target = sum(self._log_marks().values()) + GROWN
        while sum(self._log_marks().values()) < target:
            time.sleep(0.1)
        self._end_of(keyed, KILLED, gap=self._rng.choice(("commit", "checkpoint")))
        self._end_of(keyed, INGEST)
        wrong = keyed.differences(log_entries(self._cluster))
        if self._end_of(keyed, AUDIT, expected=(0, 1)) == 1:
            wrong.append(f"the audit differs, see {self._log}")
        self.found.wrong += [f"after keyed: {line}" for line in wrong]
        for line in wrong:
            self._say(f"wrong after keyed: {line}")
        return "equal" if not wrong else "wrong"

    def _end_of(self, keyed: KeyedTable, script: str, *, gap: str = "", expected: Collection[int] = ()) -> int:
        """The exit code of a job that ends as expected: by itself, or killed at the gap."""
        wanted = expected or ((-signal.SIGKILL,) if gap else (0,))
        for _ in range(ENDS_BORNE):
            environment = spark_environment(WALTZ_TEST_GAP=gap, WALTZ_TEST_LAST_WORDS=str(self._last_words)) if gap else None
            arguments = [f"--pipeline={keyed.file()}", *([] if script == AUDIT else ["--verbose"])]
            driver = submit(script, *arguments, log=self._log, environment=environment)
            try:
                code = driver.wait(PATIENCE_S)
            finally:
                end_driver(driver)
            if code in wanted:
                return code
            if code not in ENDED_BY_ITSELF:
                break
            self.found.exits[code] += 1
        raise AssertionError(f"{script} ended with code {code}, see {self._log}:\n{self._log.read_text()[-3000:]}")

    def _start(self, table: Path | None = None, checkpoint: Path | None = None, *, gap: str = "", once: bool = False) -> subprocess.Popen[bytes]:
        path = table or self._user.path
        behind = sum(self._log_marks().values()) - sum(self._marks(path).values())
        self._go().unlink(missing_ok=True)
        self._last_words.unlink(missing_ok=True)
        self._started_at = self._log.stat().st_size if self._log.exists() else 0
        return submit(
            KILLED if gap else INGEST,
            *(f"--cluster={self._cluster}", f"--table={path}", f"--checkpoint={checkpoint or self._checkpoint}"),
            *(f"--trigger={'available-now' if once else '50 milliseconds'}", f"--max-transactions-per-trigger={max(300, behind // BATCHES)}"),
            *(f"--engine={self._rng.choice(CHOICES)}", WHERE, "--verbose"),
            log=self._log,
            environment=spark_environment(WALTZ_TEST_GAP=gap, WALTZ_TEST_LAST_WORDS=str(self._last_words)) if gap else None,
        )

    def _go(self) -> Path:
        return self._last_words.with_name(f"{self._last_words.name}.go")

    def _log_marks(self) -> dict[int, int]:
        with SyncWaltzClient(self._cluster) as client:
            return {partition: client.high_water_mark(partition) for partition in range(client.partitions)}

    def _marks(self, path: Path | None = None) -> dict[int, int]:
        """None of a table that is being removed, or that a batch overtook."""
        with suppress(WaltzError, OSError, ValueError):
            return marks_of(path or self._user.path, self._key)
        return {}

    def _wait_for_progress(self, driver: subprocess.Popen[bytes]) -> bool:
        before, deadline = self._marks(), time.monotonic() + PATIENCE_S
        while driver.poll() is None:
            if self._marks() != before:
                return True
            assert time.monotonic() < deadline, f"the driver gets nowhere, see {self._log}"
            time.sleep(0.1)
        return False

    def _wait_for_pause(self, driver: subprocess.Popen[bytes]) -> bool:
        deadline = time.monotonic() + PATIENCE_S
        while driver.poll() is None:
            if self._last_words.exists():
                return True
            assert time.monotonic() < deadline, f"the driver gets nowhere, see {self._log}"
            time.sleep(0.1)
        return False

    def _wait_for(self, driver: subprocess.Popen[bytes], target: dict[int, int]) -> int | None:
        """The exit code of a driver that ended before the table held the target."""
        deadline = time.monotonic() + PATIENCE_S
        while (code := driver.poll()) is None:
            marks = self._marks()
            if all(marks.get(partition, -1) >= mark for partition, mark in target.items()):
                return None
            assert time.monotonic() < deadline, f"the driver gets nowhere, see {self._log}"
            time.sleep(0.2)
        return code
