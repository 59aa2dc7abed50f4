"""The tables of states are complete, and a machine refuses every transition that its table does not declare."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from waltz_log.core.replica_status import ReplicaStatus
from waltz_log.core.session_states import MOUNT, REPLICA_SESSION, STORE_SESSION, MountState, StateMachine, StateTable, StoreState
from waltz_log.errors import UndeclaredTransition

TABLES: list[StateTable[Any]] = [MOUNT, REPLICA_SESSION, STORE_SESSION]


def reached(table: StateTable[Any]) -> set[Any]:
    found, new = set[Any](), {table.initial}
    while new:
        found |= new
        new = {target for source in new for target in table.transitions.get(source, {})} - found
    return found


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.machine)
def test_every_state_has_a_meaning_and_is_reached(table: StateTable[Any]) -> None:
    assert reached(table) == set(table.meanings)
    assert all(when for found in table.transitions.values() for when in found.values())


@pytest.mark.parametrize("enum", [MountState, StoreState])
def test_no_state_is_forgotten(enum: type[MountState] | type[StoreState]) -> None:
    (table,) = [table for table in TABLES if isinstance(table.initial, enum)]
    assert set(table.meanings) == set(enum)


def test_a_session_can_end_or_fail_in_every_state_but_the_last() -> None:
    assert {state for state in StoreState if StoreState.ENDED in STORE_SESSION.transitions.get(state, {})} == set(StoreState) - {StoreState.ENDED}
    failed = {ReplicaStatus.FAILED, ReplicaStatus.CORRUPT}
    assert {state for state, found in REPLICA_SESSION.transitions.items() if found.keys() >= failed} == set(REPLICA_SESSION.meanings) - failed
    assert {state for state in MountState if MountState.FAILED in MOUNT.transitions.get(state, {})} == set(MountState) - {MountState.FAILED}


def test_a_renewed_session_connects_to_its_replicas_again_from_every_state() -> None:
    assert {state for state, found in REPLICA_SESSION.transitions.items() if ReplicaStatus.CONNECTING in found} == set(REPLICA_SESSION.meanings)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.machine)
def test_a_machine_accepts_declared_transitions_and_refuses_the_rest(table: StateTable[Any]) -> None:
    paths: dict[Any, list[Any]] = {table.initial: []}
    for _ in table.meanings:
        for source, target in product(list(paths), table.meanings):
            if target in table.transitions.get(source, {}):
                paths.setdefault(target, [*paths[source], target])
    for source, target in product(paths, table.meanings):
        machine = StateMachine(table)
        for state in paths[source]:
            machine.move(state)
        if target in table.transitions.get(source, {}):
            machine.move(target)
            assert machine.current is target
        else:
            with pytest.raises(UndeclaredTransition) as refused:
                machine.move(target)
            assert refused.value.facts == {"machine": table.machine, "source": source, "target": target}
            assert machine.current is source
