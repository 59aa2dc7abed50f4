"""What a cluster deals with by itself is a warning; only a defect is an error with a traceback."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from waltz_log.background_tasks import BackgroundTask, is_expected
from waltz_log.errors import ClusterUnavailable, CorruptData, Fenced, InvalidRequest, StorageFull, Unavailable
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.testing.virtual_time import run_in_virtual_time


def _alarming(logs: list[Any]) -> list[Any]:
    return [each for each in logs if each["log_level"] in ("error", "critical") or each.get("exc_info")]


@pytest.mark.parametrize("lives_on", [False, True], ids=["killed", "lives on"])
def test_a_lost_coordinator_session_is_no_error(lives_on: bool) -> None:
    """Of a server that owns partitions and is the cluster's manager; it goes on until a server creates it again."""

    async def scenario() -> None:
        cluster = MemoryCluster(partitions=2, servers=2)
        await cluster.start()
        client = await cluster.connect()
        await client.append(0, b"x")
        with capture_logs() as logs:
            if lives_on:
                server, session = cluster.servers.pop("server-0")
                cluster.ensemble.expire(session)
                await asyncio.sleep(5)
                await server.abort()
            else:
                await cluster.kill_server("server-0")
                await asyncio.sleep(5)
            await client.append(0, b"y")
            await client.append(1, b"z")
        assert _alarming(logs) == []
        if lives_on:
            assert "task interrupted and is restarted" in {each["event"] for each in logs}
        await client.close()
        await cluster.stop()

    run_in_virtual_time(scenario())


@pytest.mark.parametrize(
    ("error", "level"),
    [
        (ClusterUnavailable(address="here", reason="session ended"), "warning"),
        (Unavailable(reason="away"), "warning"),
        (Fenced(what="store session", partition=0, mine=1, newer=2), "warning"),
        (InvalidRequest(reason="a defect of ours"), "error"),
        (CorruptData(where="x", offset=0, transaction_id=0, reason="y"), "error"),
        (RuntimeError("a defect"), "error"),
        (KeyError(7), "error"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value,
)
def test_a_task_logs_what_is_expected_without_and_a_defect_with_its_traceback(error: Exception, level: str) -> None:
    runs = 0

    async def work() -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise error

    async def run() -> None:
        await BackgroundTask("work", work).wait_over()

    with capture_logs() as logs:
        run_in_virtual_time(run())
    assert runs == 2
    assert [(each["log_level"], bool(each.get("exc_info"))) for each in logs] == [(level, level == "error")]


def test_a_full_disk_is_expected() -> None:
    assert is_expected(StorageFull(partition=0, reason="full", free_bytes=1))
