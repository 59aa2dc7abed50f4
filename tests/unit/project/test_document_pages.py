"""The pages on the five documents name code that exists, and give a reason for every deliberate difference."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = sorted(path for path in (ROOT / "docs/concepts/documents").glob("*.md") if path.name != "README.md")
PATH = re.compile(r"`([a-z_]+(?:/[a-z_0-9.]+)+\.(?:py|proto|md))`")


def rows(page: str, heading: str) -> list[list[str]]:
    """The cells of each row of the table under a heading."""
    lines = page.split(f"## {heading}\n")[1].split("\n## ")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")][2:]


def missing(text: str) -> list[str]:
    """Paths that a page names and the repository does not have."""
    places = (ROOT / "platform/log/waltz_log", ROOT)
    return [found for found in PATH.findall(text) if not any((place / found).is_file() for place in places)]


def test_each_document_has_its_page() -> None:
    assert [path.stem for path in PAGES] == [
        "circular_journal",
        "client_server_communication",
        "on_disk_data_structures",
        "partitioned_wal",
        "waltz_server",
    ]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_names_code_that_exists_and_a_reason_for_each_difference(path: Path) -> None:
    page = path.read_text()
    assert missing(page) == []
    mechanisms, differences = rows(page, "Mechanisms"), rows(page, "Deliberate differences")
    assert len(mechanisms) >= 5
    assert all(len(row) == 3 and PATH.search(row[1]) and row[2] for row in mechanisms)
    assert all(len(row) == 3 and len(row[2]) > 20 for row in differences)


@pytest.mark.parametrize(
    ("stem", "difference"),
    [
        ("partitioned_wal", "Chain replication"),
        ("partitioned_wal", "create()"),
        ("partitioned_wal", "in advance"),
        ("partitioned_wal", "every 10 seconds"),
        ("circular_journal", "sealed"),
    ],
)
def test_the_differences_that_readers_ask_for_are_there(stem: str, difference: str) -> None:
    page = (ROOT / f"docs/concepts/documents/{stem}.md").read_text()
    assert any(difference in " ".join(row[:2]) for row in rows(page, "Deliberate differences"))


def test_a_path_that_does_not_exist_is_noticed() -> None:
    assert missing("`server/replication/store_session.py` and `server/nowhere.py`, `docs/internals/recovery.md`") == ["server/nowhere.py"]
