from __future__ import annotations

from io import StringIO
from typing import Any

from rich.console import Console

from waltz_log.cli.cluster.cluster import show
from waltz_log.coordination.survey import ServerState, StorageState, Survey


def worker(number: int, *, answers: bool = True) -> dict[str, Any]:
    reported = {"pid": 40 + number, "restarts": number, "cpu_s": 1.25, "memory_max_kib": 71_680, "passed_on": {"calls": 1200}}
    return {"worker": number, "answers": answers} | (reported if answers else {})


def reported(found: Survey) -> str:
    console = Console(file=StringIO(), width=200)
    show(found, console)
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def state(*, of_server: list[dict[str, Any]], of_storage: list[dict[str, Any]]) -> Survey:
    servers = (ServerState(1, "here:1", True, {"workers": of_server} if of_server else {}),)
    return Survey("test", "key", (), servers, (StorageState("storage-0", "here:2", True, {"workers": of_storage} if of_storage else {}),))


def test_each_worker_is_shown_and_one_that_is_silent_is_named() -> None:
    found = state(of_server=[worker(0), worker(1)], of_storage=[worker(0), worker(1, answers=False)])
    assert (found.ready, found.complete, found.missing) == (True, False, "storage workers that do not answer: storage-0/1")
    lines = [line.split() for line in reported(found).splitlines()]
    assert ["server", "1/1", "41", "1", "1.2", "s", "70", "MiB", "1,200"] in lines
    assert ["storage-0/1", "-", "-", "-", "-", "-"] in lines
    assert ["storage-0", "here:2", "yes,", "but", "for", "worker", "1"] in lines


def test_nodes_of_one_process_are_shown_as_ever() -> None:
    found = state(of_server=[], of_storage=[])
    assert found.complete
    assert "worker" not in reported(found)
