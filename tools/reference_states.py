"""Prints docs/reference/states.md, the page of the states of sessions; with `--write` it writes the file.

Everything on the page is read from the tables of `waltz_log.core.session_states`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

from waltz_log.core.session_states import MOUNT, REPLICA_SESSION, STORE_SESSION, StateTable

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "states.md"

INTRODUCTION = """\
# States of sessions

Generated from `core/session_states.py` by `python tools/reference_states.py --write`.

The owner of a partition has a store session, a replica session for each replica, and a mount for each client that is connected. A state changes only
along an arrow; anything else is a defect and ends the session with `UndeclaredTransition`. What happens in each state:
[recovery](../internals/recovery.md).
"""

SECTIONS: list[tuple[str, str, StateTable[Any]]] = [  # Any: each table has an enum of its own
    ("Store session", "One owner that writes one partition.", STORE_SESSION),
    (
        "Replica session",
        "The owner's side of one replica. `waltz cluster status` shows these states; it shows `full` where the replica's disk has no room, "
        "whatever the state is.\nThe states that are not here come from the storage node or from its absence: [operations](../guides/operations.md).",
        REPLICA_SESSION,
    ),
    ("Mount", "One client that is connected to the owner.", MOUNT),
]


def page() -> str:
    return "\n".join([INTRODUCTION, *(line for section in SECTIONS for line in _section(*section))])


def _section(title: str, about: str, table: StateTable[StrEnum]) -> Iterator[str]:
    yield from (f"## {title}", "", about, "", "```mermaid", *diagram(table), "```", "")
    yield from ("| state | meaning |", "|---|---|", *(f"| {state} | {meaning} |" for state, meaning in table.meanings.items()), "")
    yield from ("| from | to | when |", "|---|---|---|")
    yield from (f"| {source} | {target} | {when} |" for source, found in table.transitions.items() for target, when in found.items())
    yield ""


def diagram(table: StateTable[StrEnum]) -> Iterator[str]:
    """The arrows without their events, which would hide them; the table below the diagram has the events."""
    yield "stateDiagram-v2"
    yield from (f'    state "{state}" as {_name(state)}' for state in table.meanings)
    yield f"    [*] --> {_name(table.initial)}"
    yield from (f"    {_name(source)} --> {_name(target)}" for source, found in table.transitions.items() for target in found)
    yield from (f"    {_name(state)} --> [*]" for state in table.meanings if state not in table.transitions)


def _name(state: StrEnum) -> str:
    return state.value.replace(" ", "_")


def main(arguments: list[str]) -> None:
    if arguments == ["--write"]:
        PAGE.write_text(page())
    elif arguments:
        sys.exit(f"unknown arguments: {' '.join(arguments)}")
    else:
        print(page(), end="")


if __name__ == "__main__":
    main(sys.argv[1:])
