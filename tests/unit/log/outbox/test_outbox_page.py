"""The program in docs/guides/outbox.md runs as it stands there, and the page names every setting."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.unit.log.outbox.bench import bench, run
from waltz_log import client
from waltz_log.client import OutboxSettings
from waltz_log.testing.disk import SimulatedDisk

PAGE = (Path(__file__).resolve().parents[4] / "docs" / "guides" / "outbox.md").read_text()


def test_the_program_on_the_page_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    program = f"async def program():\n{textwrap.indent(found[1], '    ')}        await outbox.flush()\n"

    async def main() -> None:
        async with bench() as b:

            class Here:
                @staticmethod
                def over(directory: str, cluster: str) -> Any:
                    return b.outbox(SimulatedDisk())

            monkeypatch.setattr(client, "Outbox", Here)
            namespace: dict[str, Any] = {}
            exec(program, namespace)
            await namespace["program"]()
            assert sorted(await b.data(0)) == [b"12AAda", b"clicked"]

    run(main)
    assert "transaction_id=" in capsys.readouterr().out


def test_the_page_names_every_setting() -> None:
    assert [name for name in OutboxSettings.model_fields if f"`{name}`" not in PAGE] == []
