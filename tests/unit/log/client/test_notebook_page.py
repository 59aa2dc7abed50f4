"""The cells of docs/guides/notebooks.md run one after another in one event loop, as in a notebook."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from waltz_log.client import WaltzClient
from waltz_log.testing import InMemoryCluster

PAGE = (Path(__file__).resolve().parents[4] / "docs" / "guides" / "notebooks.md").read_text()
CELLS: list[str] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


async def test_the_cells_on_the_page_append_and_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async with InMemoryCluster(partitions=1, storages=1, servers=1) as cluster:
        made: list[WaltzClient] = []

        async def connect(address: str) -> WaltzClient:
            made.append(await cluster.client())
            return made[0]

        monkeypatch.setattr(WaltzClient, "connect", connect)
        namespace: dict[str, Any] = {"__name__": "notebook"}
        for cell in CELLS:
            running = eval(compile(cell, "docs/guides/notebooks.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), namespace)
            if running is not None:
                await running
    assert namespace["found"] == [b"hello from a notebook"]
    assert len(made) == 1
