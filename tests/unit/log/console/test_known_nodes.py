"""A node that was killed is missing for a day, not gone."""

from __future__ import annotations

from waltz_log.console.reading.known_nodes import KEPT_MS, KnownNodes
from waltz_log.coordination.survey import ServerState, StorageState, Survey


def survey(*servers: ServerState, storages: tuple[StorageState, ...] = (), drained: tuple[str, ...] = ()) -> Survey:
    return Survey("test", "key", (), servers, storages, drained)


def server(number: int, *, answers: bool = True, address: str = "") -> ServerState:
    return ServerState(number, address or f"server-{number}:1", answers, {})


def test_a_server_that_leaves_is_missing_until_it_returns_or_a_day_is_over() -> None:
    known = KnownNodes()
    assert known.add(survey(server(0), server(1)), 1000) == ()
    assert known.add(survey(server(0), server(1, answers=False)), 2000) == (), "the survey shows it itself"
    (missing,) = known.add(survey(server(0)), 3000)
    assert (missing.title, missing.seen_ms) == ("Server 1 at server-1:1", 1000)
    assert known.add(survey(server(0), server(1)), 4000) == ()
    assert len(known.add(survey(server(0)), 4000 + KEPT_MS)) == 1
    assert known.add(survey(server(0)), 4001 + KEPT_MS) == ()


def test_a_storage_node_that_leaves_is_missing_too() -> None:
    known = KnownNodes()
    known.add(survey(storages=(StorageState("storage-0", "a:1", True, {}), StorageState("storage-1", "b:1", True, {}))), 1000)
    (missing,) = known.add(survey(storages=(StorageState("storage-0", "a:1", True, {}),)), 2000)
    assert (missing.server_id, missing.title) == (None, "Storage node storage-1")


def test_a_server_that_starts_again_has_another_id_and_is_not_missing() -> None:
    known = KnownNodes()
    known.add(survey(server(1, address="host:1")), 1000)
    assert len(known.add(survey(), 2000)) == 1
    assert known.add(survey(server(3, address="host:1")), 3000) == ()


def test_a_node_that_was_drained_is_not_missing() -> None:
    known = KnownNodes()
    known.add(survey(server(0), server(1)), 1000)
    assert known.add(survey(server(0), drained=("server-1:1",)), 2000) == ()
