"""`waltz explain`: every error by its name and by its message; its links lead to sections that have it."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import pytest

from tools import reference_errors
from waltz_log.cli.main import run
from waltz_log.cli.support.explain import TROUBLESHOOTING, find_errors
from waltz_log.errors import ClusterUnavailable, InvalidRequest, LockConflict, OutboxFull, OutcomeUnknown, WaltzError
from waltz_log.exit_codes import USAGE

DOCS = Path(__file__).resolve().parents[5] / "docs"
page = cache(reference_errors.page)
CLASSES = [cls for section in reference_errors.SECTIONS for cls in reference_errors.classes(section)]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_error_of_the_reference_is_explained_by_its_name(cls: type[WaltzError], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", cls.__name__.lower(), "--output", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["error"], found["exit_code"]) == (cls.__name__, cls.exit_code)
    assert found["what_to_do"].endswith(".")
    assert "{" not in found["message"]
    assert f"### {cls.__name__}\n" in page()
    assert found["read"][0] == f"docs/reference/errors.md#{cls.__name__.lower()}"


@pytest.mark.parametrize(
    ("text", "cls"),
    [
        (f"waltz: {ClusterUnavailable(address='here:1/x', reason='no cluster there')}", ClusterUnavailable),
        (f"waltz_log.errors.LockConflict: {LockConflict(partition=3, winner=7)}", LockConflict),
        ("Traceback ... OutcomeUnknown: outcome unknown", OutcomeUnknown),
        ("outbox full", OutboxFull),
    ],
)
def test_a_message_is_explained_as_it_was_printed(text: str, cls: type[WaltzError]) -> None:
    assert find_errors(text) is cls


def test_a_message_has_fields_in_the_place_of_their_values(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "PermissionDenied"]) == 0
    assert "permission denied: no rule permits <principal> to <operation> <resource>\n" in capsys.readouterr().out


def test_what_is_no_error_is_refused_with_the_most_similar_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "LockConflit"]) == USAGE
    assert "no such error: LockConflit, did you mean LockConflict" in capsys.readouterr().err
    assert run(["explain", "99"]) == USAGE
    assert "no command ends with exit code 99" in capsys.readouterr().err
    with pytest.raises(InvalidRequest, match=r"no such error: \?\?; docs/reference/errors.md lists all of them"):
        find_errors("??")


def test_an_exit_code_is_explained_with_its_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "5"]) == 0
    shown = capsys.readouterr().out
    assert "StorageFull" in shown
    assert "repair this machine" in shown


def test_links_are_those_of_the_troubleshooting_page() -> None:
    found: dict[str, str] = {}
    section = ""
    for line in (DOCS / "guides" / "troubleshooting.md").read_text().splitlines():
        if line.startswith("## "):
            section = re.sub(r"[^a-z0-9 -]", "", line[3:].lower()).replace(" ", "-")
        for name in re.findall(r"`(\w+)`", line):
            if name in {cls.__name__ for cls in CLASSES}:
                found.setdefault(name, section)
    assert found == dict(TROUBLESHOOTING)
