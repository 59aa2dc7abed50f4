"""What is done to tables and checkpoints behind the sink's back, and what must come of it.

Either the query goes on, and the table equals the log but for what users changed. Or the query ends with an error that says what to do, and after
that is done the table equals the log again.
"""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.e2e.chaos_tables import TableUser

__all__ = ["ACTIONS", "OLDER", "START", "Action", "actions_of", "follow", "judge", "outcome_of", "reported_in"]

_TOLD = re.compile(r"waltz_(?:delta|log)\.errors\.(\w+): ([^\n]*)")

ADVICE = "delete the checkpoint"
REFUSED: dict[str, tuple[str, Callable[[TableUser], object]]] = {
    "ModeChanged": ("name another table", lambda user: user.set_mode("append")),
    "ClusterKeyMismatch": ("set former_clusters", TableUser.forget_other_cluster),
    "SchemaMismatch": ("evolution: add_columns adds it", lambda user: user.rename_column("payload", "data")),
    "InvalidSetting": ("set the zone of the table", TableUser.restore_zone),
}
"""Errors that a change of the table brought, which the user undoes: part of what each must say, and how."""


@dataclass(frozen=True, slots=True)
class Action:
    """`when`: while no query runs, while one runs, or while one has written a batch's files and not committed them; `keyed`: to another table, which
    `chaos_keyed` describes."""

    when: Literal["stopped", "running", "committing", "keyed"]
    act: Callable[[TableUser], object] | None
    ends: tuple[str, ...] = ()
    """Errors, one of which must end the query."""
    silent: Literal["never", "restarted", "always"] = "never"
    """Where it has `ends`: whether the query may go on all the same; `restarted`: only one that was killed before it could notice."""
    checkpoint: Literal["", "ahead", "behind"] = ""
    """The checkpoint of a query that filled another table comes in place of ours: one that is further, or one that landed a single batch."""


GONE = ("GapInTable", "TableReplaced")
LEFT = "NotADeltaTable"
"""Something of the table is left, or of a commit that was made just then."""

ACTIONS: dict[str, Action] = {
    "removed": Action("stopped", TableUser.remove, GONE),
    "removed-running": Action("running", TableUser.remove, (*GONE, LEFT)),
    "removed-committing": Action("committing", TableUser.remove, GONE),
    "emptied-committing": Action("committing", TableUser.empty, (*GONE, LEFT)),
    "replaced-level": Action("stopped", lambda user: user.replace("level"), ("TableReplaced",)),
    "replaced-behind": Action("stopped", lambda user: user.replace("behind"), ("TableReplaced",)),
    "replaced-strange": Action("stopped", lambda user: user.replace("strange"), ("TableReplaced",)),
    "replaced-running": Action("running", lambda user: user.replace("level"), (*GONE, LEFT)),
    "restored": Action("stopped", TableUser.restore, ("GapInTable",), silent="always"),
    "restored-written": Action("stopped", TableUser.restore_and_write, ("GapInTable",), silent="always"),
    "restored-running": Action("running", TableUser.restore, ("TableRestored", "RestoreOvertaken", "GapInTable"), silent="restarted"),
    "restored-committing": Action("committing", TableUser.restore, ("RestoreOvertaken",)),
    "checkpoint-ahead": Action("stopped", None, ("GapInTable",), checkpoint="ahead"),
    "checkpoint-behind": Action("stopped", None, checkpoint="behind"),
    "checkpoint-elsewhere": Action("stopped", TableUser.remove, ("GapInTable",), checkpoint="ahead"),
    "vacuum": Action("stopped", TableUser.vacuum),
    "delete": Action("stopped", TableUser.delete),
    "delete-running": Action("running", TableUser.delete),
    "optimize": Action("stopped", TableUser.optimize),
    "optimize-running": Action("running", TableUser.optimize),
    "constrained": Action("stopped", TableUser.add_constraint),
    "mode-changed": Action("stopped", lambda user: user.set_mode("upsert"), ("ModeChanged",)),
    "other-cluster": Action("stopped", TableUser.claim_for_other_cluster, ("ClusterKeyMismatch",)),
    "column-renamed": Action("stopped", lambda user: user.rename_column("data", "payload"), ("SchemaMismatch",)),
    "column-renamed-running": Action("running", lambda user: user.rename_column("data", "payload"), ("SchemaMismatch",)),
    "time-zone-changed": Action("stopped", TableUser.change_zone, ("InvalidSetting",)),
    "empty-key": Action("keyed", None),
    "foreign": Action("stopped", TableUser.append),
    "foreign-running": Action("running", TableUser.append),
}

START = Action("stopped", None)
"""A query that fills the table, so that there is something to act on."""

OLDER = Action("stopped", None, GONE, silent="always")
"""The checkpoint of an earlier time was put back, which may name a table that is gone."""


def actions_of(kills: int, rng: random.Random) -> list[str]:
    """One before each life of the driver but the first: 30 see each action once. They come in turns, in an order that the generator chooses."""
    turn = list(ACTIONS)
    rng.shuffle(turn)
    return [turn[number % len(turn)] for number in range(kills - 1)]


def reported_in(text: str) -> tuple[str, str] | None:
    """The innermost of the sink's errors in what a driver printed, which comes last: its name and its line."""
    found = _TOLD.findall(text)
    return found[-1] if found else None


def follow(name: str, line: str, user: TableUser, checkpoint: Path) -> list[str]:
    """Does what the error says. Gives what is wrong with it."""
    wrong: list[str] = []
    if name in REFUSED:
        advice, undo = REFUSED[name]
        undo(user)
        return wrong if advice in line else [f"{name} does not say what to do: {line}"]
    if name == LEFT:
        user.remove()
    if name == "TableReplaced":
        user.remove_left_checksums()
    if ADVICE not in line:
        wrong.append(f"{name} does not say what to do: {line}")
    if name == "RestoreOvertaken":
        version = re.search(r"\bversion=(\d+)", line)
        if version is None:
            return [*wrong, f"{name} names no version: {line}"]
        user.restore_to(int(version[1]))
    shutil.rmtree(checkpoint, ignore_errors=True)
    return wrong


def judge(action: Action, reported: Sequence[str], *, restarted: bool) -> list[str]:
    """What is wrong with the errors that ended the query after an action. One that was followed brings no other."""
    wrong = [f"ended with {name}, where {' or '.join(action.ends) or 'nothing'} was expected" for name in reported if name not in action.ends]
    if len(reported) > 1:
        wrong.append(f"ended {len(reported)} times: {', '.join(reported)}")
    quiet = action.silent == "always" or (action.silent == "restarted" and restarted)
    if action.ends and not reported and not quiet:
        wrong.append(f"the query went on, where {' or '.join(action.ends)} was expected")
    return wrong


def outcome_of(reported: Sequence[str]) -> str:
    return "equal" if not reported else f"{', '.join(reported)}, then equal"
