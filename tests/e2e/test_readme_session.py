"""The session of the README, pasted as it stands into the shells that it names: two bash, `python` and `pyspark`.

Its second step appends what is no JSON ("hello"), so everything after it runs on a log that already holds something else.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.e2e.pasted import ROOT, blocks, make_folder, pasted, running

pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize("spark", [False, pytest.param(True, marks=pytest.mark.long)], ids=["log", "log-and-spark"])
def test_the_readmes_session_works_as_pasted(tmp_path: Path, spark: bool) -> None:
    readme = (ROOT / "README.md").read_text()
    block = blocks(readme)
    assert list(block) == ["dev", "terminal", "hello", "python", "pyspark", "job", "sql"]
    folder = make_folder(tmp_path)

    def second(command: str, typed: str = "") -> str:
        return pasted(f"{block['terminal']}\n{command}", folder, typed=typed)

    with running(block["dev"], folder, tmp_path / "terminal", until="ready cluster="):
        assert "hello" in second(block["hello"])
        shown = second("python -i", block["python"])
        assert "rejected: lock conflict" in shown
        assert "1 b'{" in shown
        if not spark:
            return  # each of the other steps starts a Spark of its own
        pyspark = re.search(r"`(pyspark [^`]+)`", readme)
        assert pyspark is not None
        assert re.search(r"\|\s*0\|\s*2\|", second(pyspark[1], block["pyspark"]))
        done = re.search(r"^done .*$", readme, re.MULTILINE)
        assert done is not None
        assert done[0] in second(block["job"]).splitlines()
        assert re.search(r"12A\s+Ada\s+1", second(block["sql"]))
