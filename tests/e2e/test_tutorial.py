"""The tutorial, pasted as it stands into its three terminals: the table follows the log, through a killed job and a killed storage node."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.e2e.pasted import ROOT, blocks, make_folder, pasted, running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
PAGE = (ROOT / "docs" / "tutorial" / "first_table.md").read_text()


def test_the_tutorial_works_as_pasted(tmp_path: Path) -> None:
    block = blocks(PAGE, "paste")
    assert list(block) == ["first", "second", "status", "hello", "book", "race", "check", "third", "buy", "show", "break", "kill", "again"]
    folder = make_folder(tmp_path)
    (folder / "var").mkdir()
    for name, text in blocks(PAGE, "file").items():
        (folder / name).write_text(text)

    def second(name: str) -> str:
        return pasted(f"{block['second']}\n{block[name]}", folder)

    with running(block["first"], folder, tmp_path / "first", until="ready cluster="):
        assert second("status").count("live") >= 4
        assert "hello" in second("hello")
        assert second("book").splitlines() == ["12A sold to Ada", "sorry, Bob: 12A belongs to Ada"]
        race = second("race").splitlines()
        assert sum("14C sold to" in line for line in race) == 1
        assert sum("sorry" in line for line in race) == 7
        second("check")
        with running(block["third"], folder, tmp_path / "third"):
            assert "transaction 3 is in version" in second("buy")
            shown = second("show")
            assert re.search(r"dead letter: 0 b'hello'", shown)
            assert [int(found) for found in re.findall(r"'transaction_id': (\d+)", shown)] == [1, 2, 3]
            second("break")
        assert "unreachable" in second("kill")
        with running(block["third"], folder, tmp_path / "third-again"):
            shown = second("again")
            assert [int(found) for found in re.findall(r"'transaction_id': (\d+)", shown)] == [1, 2, 3, 4, 5]
            assert "the table holds the log up to {0: 5}" in shown
