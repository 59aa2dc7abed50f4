"""The pages on the five documents name code that exists, and give a reason for every deliberate difference."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = sorted(path for path in (ROOT / "docs/concepts/documents").glob("*.md") if path.name != "README.md")
PATH = re.compile(r"`([a-z_]+(?:/[a-z_0-9.]+)+\.(?:py|proto|md))`")


MECHANISM = re.compile(r"\*\*(.+?)\*\* (.+) Code: (.+)")
DIFFERENCE = re.compile(r"\*\*The document:\*\* (.+) \*\*Here:\*\* (.+) \*\*Reason:\*\* (.+)")


def items(page: str, heading: str, form: re.Pattern[str]) -> list[tuple[str, ...]]:
    """The parts of each item of the list under a heading."""
    section = page.split(f"## {heading}\n")[1].split("\n## ")[0]
    found = [form.fullmatch(" ".join(item.split())) for item in section.split("\n- ")[1:]]
    assert all(found), "an item of another form"
    return [match.groups() for match in found if match]


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
    mechanisms, differences = items(page, "Mechanisms", MECHANISM), items(page, "Deliberate differences", DIFFERENCE)
    assert len(mechanisms) >= 5
    assert len(differences) >= 5
    assert all(PATH.search(code) for _, _, code in mechanisms)
    assert all(len(reason) > 20 for _, _, reason in differences)


@pytest.mark.parametrize(
    ("stem", "difference"),
    [
        ("partitioned_wal", "Chain replication"),
        ("partitioned_wal", "create()"),
        ("partitioned_wal", "in advance"),
        ("partitioned_wal", "every 10 seconds"),
        ("circular_journal", "sealed"),
        ("client_server_communication", "two connections per server"),
        ("client_server_communication", "`partitionReady`"),
        ("client_server_communication", "with the generation in it"),
        ("client_server_communication", "success flag"),
        ("client_server_communication", "ids and headers"),
        ("waltz_server", "one catch-up feed task"),
        ("waltz_server", "closing high-water mark"),
        ("on_disk_data_structures", "`--replace`"),
        ("on_disk_data_structures", "never exceeds its size"),
        ("partitioned_wal", "1 GB"),
        ("partitioned_wal", "segment of its own"),
        ("partitioned_wal", "neither truncated nor deleted"),
        ("partitioned_wal", "never copied"),
        ("partitioned_wal", "Each core has its shard"),
        ("partitioned_wal", "can also be deleted"),
    ],
)
def test_the_differences_that_readers_ask_for_are_there(stem: str, difference: str) -> None:
    page = (ROOT / f"docs/concepts/documents/{stem}.md").read_text()
    assert any(difference in " ".join(item[:2]) for item in items(page, "Deliberate differences", DIFFERENCE))


@pytest.mark.parametrize(
    ("stem", "claim"),
    [
        ("partitioned_wal", "Segments of 1 GB"),
        ("partitioned_wal", "nothing is deleted"),
        ("partitioned_wal", "referenced, not copied"),
        ("partitioned_wal", "One process per core"),
        ("client_server_communication", "Two gRPC channels per server"),
    ],
)
def test_no_mechanism_claims_more_than_the_code_does(stem: str, claim: str) -> None:
    """Each of these is a difference, with its reason."""
    page = (ROOT / f"docs/concepts/documents/{stem}.md").read_text()
    assert not any(claim in " ".join(item) for item in items(page, "Mechanisms", MECHANISM))


def test_a_path_that_does_not_exist_is_noticed() -> None:
    assert missing("`server/replication/store_session.py` and `server/nowhere.py`, `docs/internals/recovery.md`") == ["server/nowhere.py"]
