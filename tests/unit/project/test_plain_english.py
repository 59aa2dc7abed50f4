"""What people read is plain English: docs, log events, error messages and the help of commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.plain_english import (
    AVOID,
    COUNTS,
    code_findings,
    committed_counts,
    count_problems,
    counts,
    docstrings_without_a_subject,
    page_findings,
    pages,
    sentences_found,
    source_findings,
    words,
)

ROOT = Path(__file__).parents[3]
NOT_YET = ROOT / "tests/unit/project/not_yet_plain.txt"
"""Pages that were not rewritten yet. Remove a page when it passes; a page that is not listed must pass."""
LISTED = set(NOT_YET.read_text().split())
SOURCES = sorted(path for folder in ("platform", "verification") for path in (ROOT / folder).rglob("*.py") if not path.name.endswith("_pb2.py"))


@pytest.mark.parametrize("page", pages(), ids=str)
def test_a_page_is_plain_or_listed_as_not_rewritten(page: Path) -> None:
    findings = page_findings((ROOT / page).read_text())
    if str(page) in LISTED:
        assert findings, f"{page} passes now: remove it from {NOT_YET.name}"
    else:
        assert not findings, "\n".join(f"{page}:{found.line}: {found.found}: {found.instead}" for found in findings)


def test_every_listed_page_exists() -> None:
    assert {page for page in LISTED if not (ROOT / page).is_file()} == set()


def test_log_events_error_messages_and_help_are_plain() -> None:
    found = [f"{path.relative_to(ROOT)}:{each.line}: {each.found}: {each.instead}" for path in SOURCES for each in source_findings(path.read_text())]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("page", sorted((ROOT / "platform").rglob("templates/*.html")), ids=lambda path: path.name)
def test_a_page_of_the_console_is_plain(page: Path) -> None:
    found = [f"{number}: {each}" for number, line in enumerate(page.read_text().splitlines(), 1) for each in words(line)]
    assert not found, "\n".join(found)


def test_a_sentence_that_had_to_be_read_twice_does_not_return() -> None:
    found = sentences_found()
    assert not found, "\n".join(found)


def test_no_docstring_of_the_product_begins_without_its_subject() -> None:
    found = {path: docstrings_without_a_subject(path.read_text()) for path in SOURCES if path.is_relative_to(ROOT / "platform")}
    assert {str(path): lines for path, lines in found.items() if lines} == {}
    assert docstrings_without_a_subject('class Name:\n    """Of one process."""\n') == [2]


def test_a_sentence_that_returns_is_found_with_its_line(tmp_path: Path) -> None:
    for name in ("README.md", "SECURITY.md"):
        (tmp_path / name).write_text("")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/page.md").write_text("Fine.\n\nUnknown can be settled.\n")
    assert sentences_found(tmp_path) == ["docs/page.md:3: Unknown can be settled"]


@pytest.mark.parametrize("reason", ["wants a number", "wanted a list", "/x is no directory"])
def test_an_error_that_says_what_a_setting_wants_is_found(reason: str) -> None:
    assert source_findings(f"raise InvalidSetting(name='x', reason={reason!r})")
    assert not source_findings("raise InvalidSetting(name='x', reason='must be a number; this is no longer used')")


@pytest.mark.parametrize(
    "text",
    [
        "the client is told",
        "the owner takes it",
        "It is tested. Who finds no place waits.",
        "rot found",
        "look at the disk",
        "whoever comes second",
        "it stands in the file",
        "done so that it ends, so that it begins",
    ],
)
def test_a_word_to_avoid_is_found(text: str) -> None:
    assert list(words(text))


@pytest.mark.parametrize(
    "text",
    [
        "it takes 3 s",
        "took ms",
        "a sync takes up to 2 ms",
        "the change takes effect at once",
        "Who may append?",
        "clients who read",
        "it does not take effect",
        "look up the key",
    ],
)
def test_standard_english_is_not_reported(text: str) -> None:
    assert not list(words(text))


def test_code_is_not_checked_and_its_length_is() -> None:
    assert page_findings("`rot found`\n```\ntold\n```\n") == []
    assert [found.line for found in page_findings("```\n" + "x" * 161 + "\n```\ntold\n")] == [2, 4]


def test_events_messages_and_help_are_read_from_source() -> None:
    source = '''
def f():
    """A docstring that is told to nobody."""
    log.warning("rot found", told=1)
    raise StorageFailed(f"directory {path} is taken")
option(help="Tell what there is")
@app.command()
def g():
    """Look at it."""
'''
    assert sorted(found.line for found in source_findings(source)) == [4, 5, 6, 8]


def test_words_to_avoid_in_code_only_become_fewer() -> None:
    problems = count_problems(committed_counts(COUNTS.read_text()), counts())
    assert not problems, "\n".join(problems)


def test_a_long_row_of_a_table_is_found_on_a_page_that_is_written_by_hand() -> None:
    row = f"| {'x' * 156} |"
    page = f"{row}\n{row}x\n  {row}\n"
    assert [(found.line, found.found) for found in page_findings(page)] == [(2, "161 columns"), (3, "162 columns")]
    assert page_findings(f"Generated from nothing.\n{page}") == []
    assert page_findings(f"<!-- figures: single -->\n{page}<!-- end -->\n") == []
    assert [found.line for found in page_findings(f"<!-- figures: single -->\n<!-- end -->\n{page}y\n")] == [4, 5]


def test_a_count_that_rose_and_a_count_that_was_not_lowered_are_problems() -> None:
    problems = count_problems({"a": 1, "b": 1, "c": 1, "gone": 1}, {"a": 2, "b": 0, "c": 1, "new": 1})
    assert [problem.split(":")[0] for problem in problems] == ["a", "b", "gone", "new"]
    assert ["--lower" in problem for problem in problems] == [False, True, True, False]


def test_docstrings_comments_and_names_are_read_from_source() -> None:
    source = '''"""Module that is
told."""
LIMIT: int = 1
"""What nobody sees."""


class TakenOver:
    told: int  # one comment may go on
    # and be told on the next line


def look(taken, plain):
    """In a span, `told` is not checked."""
    plain.mended = "told"  # rot
'''
    assert sorted(found.line for found in code_findings(source)) == [1, 4, 7, 8, 8, 12, 12, 14, 14]


def test_every_pattern_names_what_to_write_instead() -> None:
    assert all(instead and re.compile(pattern) for pattern, instead in AVOID.items())
