"""The security guide, pasted as it stands: from nothing to a cluster over mutual TLS, and two applications with different permissions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.pasted import ROOT, blocks, make_folder, pasted, running

pytestmark = pytest.mark.timeout(600)


def test_the_guide_works_as_pasted(tmp_path: Path) -> None:
    block = blocks((ROOT / "docs" / "guides" / "security.md").read_text())
    assert list(block) == ["dev", "terminal", "certificates", "python", "denied"]
    folder = make_folder(tmp_path)

    def second(command: str, typed: str = "") -> str:
        return pasted(f"{block['terminal']}\n{command}", folder, typed=typed)

    with running(block["dev"], folder, tmp_path / "terminal", until="ready cluster="):
        granted = second(block["certificates"])
        assert "application-billing.pem" in granted
        assert "This is the first rule" in granted
        shown = second("python -i", block["python"])
        assert "appended 0" in shown
        assert "billing reads b'bought'" in shown
        assert "refused: permission denied: no rule permits spiffe://waltz/application/billing to append shop/orders" in shown
        denied = second(block["denied"])
        assert "orders may not read any more" in denied
        assert "a reader has no status" in denied
        assert "no rule permits reports to read" in denied
        assert "bought" in denied
