"""Links between pages hold, in the repository and on the site."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.docs_site import SECTIONS, loads, site_links
from tools.plain_english import pages

ROOT = Path(__file__).parents[3]
LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(page: str) -> set[str]:
    """As GitHub and mkdocs make them of headings."""
    headings = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def broken(page: Path) -> list[str]:
    found = []
    for target in LINK.findall(re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        place = page.parent / path if path else page
        if not place.exists() or (anchor and anchor not in anchors(place.read_text())):
            found.append(target)
    return found


@pytest.mark.parametrize("page", pages(), ids=str)
def test_the_links_of_a_page_hold(page: Path) -> None:
    assert broken(ROOT / page) == []


def test_a_broken_link_and_a_broken_anchor_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One thing\n[a](#one-thing) [b](#other) [c](nowhere.md) [d](page.md#one-thing)\n```\n[e](code.md)\n```\n")
    assert broken(page) == ["#other", "nowhere.md"]


def test_every_folder_of_the_docs_is_a_section_of_the_site() -> None:
    assert {path.name for path in (ROOT / "docs").iterdir() if path.is_dir()} == {*SECTIONS, "assets"}


def test_the_index_of_decisions_is_complete() -> None:
    folder = ROOT / "docs/decisions"
    assert set(LINK.findall((folder / "README.md").read_text())) - {"../../CONTRIBUTING.md#write-a-decision"} == {
        path.name for path in folder.glob("*.md") if path.name != "README.md"
    }


def test_links_on_the_site() -> None:
    known = {"docs/guides/client.md", "docs/concepts/documents/README.md", "README.md", "SECURITY.md"}
    page = "[a](client.md#x) [b](../../SECURITY.md) [c](../../examples/orders.py) [d](../concepts/documents/) [e](http://a.b/c) `[f](g)`"
    assert site_links(page, "docs/guides/outbox.md", "guides/outbox.md", known) == (
        "[a](client.md#x) [b](../security.md) c [d](../concepts/documents/README.md) [e](http://a.b/c) `[f](g)`"
    )
    assert site_links("[a](docs/guides/client.md) [b](SECURITY.md)", "README.md", "index.md", known) == "[a](guides/client.md) [b](security.md)"


def test_resources_that_a_page_loads_from_other_hosts_are_found() -> None:
    page = '<a href="https://a.b"></a><link rel="canonical" href="https://c.d"><link rel="stylesheet" href="https://e.f">'
    page += '<img src="//g.h"><script src="i.js"></script>'
    assert loads(page) == ["https://e.f", "//g.h"]
