"""The programs in docs/guides/client.md run as they stand there, and the page names every setting and all that is public."""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from waltz_log import client
from waltz_log.client import ClientSettings, WaltzClient
from waltz_log.client import sql as sql_package
from waltz_log.client.sql import SqlSettings
from waltz_log.coordination.topics import change_catalogue
from waltz_log.core.topics.topic_names import TopicName
from waltz_log.testing import InMemoryCluster, SyncInMemoryCluster

PAGE = (Path(__file__).resolve().parents[4] / "docs" / "guides" / "client.md").read_text()

PROGRAMS: list[str] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def compiled(program: str) -> CodeType:
    code: CodeType = compile(program, "docs/guides/client.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    return code


@pytest.mark.parametrize("number", [number for number, program in enumerate(PROGRAMS) if "await" in program])
def test_the_programs_on_the_page_run(number: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)

    async def main() -> None:
        async with InMemoryCluster(partitions=3) as cluster:

            @asynccontextmanager
            async def open(address: str) -> AsyncIterator[WaltzClient]:
                made = await cluster.client()
                async with made:
                    yield made

            coordinator = cluster.ensemble.session()
            orders: dict[str, Any] = {"type": "regular", "partitions": 1, "pool": range(3), "log_partitions": (2,), "now_ms": 1, "keyed": True}
            await change_catalogue(coordinator, lambda found: found.with_new(TopicName("shop", "orders"), **orders))
            monkeypatch.setattr(WaltzClient, "open", open)
            namespace: dict[str, Any] = {"__name__": "docs_client"}
            await eval(compiled(PROGRAMS[number]), namespace)
            if "engine" in namespace:
                namespace["engine"].dispose()

    asyncio.run(main())


def test_the_blocking_program_on_the_page_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = (program for program in PROGRAMS if "await" not in program)
    with SyncInMemoryCluster(partitions=2) as cluster:
        monkeypatch.setattr(client, "SyncWaltzClient", lambda address: cluster.client())
        exec(compiled(program), {"__name__": "docs_client"})
    assert capsys.readouterr().out.split()[-1] == "1"


def test_the_page_has_a_program_for_each_model() -> None:
    assert len(PROGRAMS) == 9


def test_the_page_names_every_setting_and_what_is_public() -> None:
    outbox = {name for name in client.__all__ if "Outbox" in name or "Intent" in name} | {"DeadLetter", "GiveUp", "Outcome"}
    names = {*ClientSettings.model_fields, *SqlSettings.model_fields, *client.__all__, *sql_package.__all__} - outbox
    described_with_their_methods = {"Appended", "NotInLog", "Unacknowledged", "Follower", "ClientSettings", "TopicBulkReceipt", "TopicRecord"}
    assert sorted(name for name in names - described_with_their_methods if name not in PAGE) == []
