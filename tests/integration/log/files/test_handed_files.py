"""A matrix: each file that a person hands over, in each form that it should not have. The outcome is one sentence within bounded memory and time, and
nothing is written elsewhere."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.log.files.handed_files import (
    FIXED_NAMES,
    FORMS,
    NEVER_READ,
    ROWS,
    STORAGE_ENDS,
    TEXT_FORMS,
    Row,
    another_users,
    export,
    in_backup,
    journal,
    storage_directory,
)
from tests.integration.log.files.handful import matrix
from tests.integration.log.files.runner import Runner, check
from waltz_log import untrusted_files
from waltz_log.compaction.manifest import METADATA
from waltz_log.core.formats.backup_manifest import MANIFEST
from waltz_log.core.formats.control_format import CONTROL_FILE, FENCE_FILE
from waltz_log.exit_codes import OK, USAGE

OTHER_USER = 65534
STRANGE_NAMES = ("00", "²", "-1", "a\nb", "\x1b[31m", os.fsdecode(b"\xff"))


def _another_user(place: Path, path: Path) -> dict[str, Any]:
    """The user of a case, who may read everything but the file. Without the rights of root, it is this user, who may not read it either."""
    if os.geteuid() != 0:
        return {}
    for each in [place, *place.rglob("*")]:
        if each != path and not each.is_symlink():
            each.chmod(0o755 if each.is_dir() else 0o644)
    place.chmod(0o777)
    return {"user": OTHER_USER}


def _contents(place: Path) -> dict[str, tuple[int, int, int]]:
    """What lies below, by name: kind and mode, size, time of the last change."""
    found = {}
    for each in sorted(place.rglob("*")):
        status = each.lstat()
        found[str(each.relative_to(place))] = (status.st_mode, status.st_size, status.st_mtime_ns)
    return found


def _form_id(row: Row, form: Callable[[Row, Path], None]) -> str:
    return f"{row}-{form.__name__}"


def _name_id(row: Row, name: str) -> str:
    return f"{row}-{name!a}"


NAMED = [row for row in ROWS if not row.within]
WITHIN = [row for row in ROWS if row.within]
FORMS_OF_NAMED = matrix(((row, form) for row in NAMED for form in FORMS), 3, _form_id)
FORMS_WITHIN = matrix(((row, form) for row in WITHIN for form in FORMS if "manifest" in row.name or form not in TEXT_FORMS), 3, _form_id)
NAMES_WITHIN = matrix(((row, name) for row in WITHIN for name in STRANGE_NAMES), 1, _name_id)
NAMES_OF_NAMED = matrix(((row, name) for row in NAMED if row.name not in FIXED_NAMES for name in STRANGE_NAMES), 1, _name_id)


@pytest.mark.parametrize("cases", [FORMS_OF_NAMED, FORMS_WITHIN, NAMES_WITHIN, NAMES_OF_NAMED])
def test_each_row_and_each_form_of_a_matrix_is_tested_with_every_change(cases: list[Any]) -> None:
    often = [case.values for case in cases if not case.marks]
    assert {row for row, _ in often} == {case.values[0] for case in cases}
    assert {condition for _, condition in often} == {case.values[1] for case in cases}


def test_the_matrices_have_every_row_and_form() -> None:
    assert {case.values for case in FORMS_OF_NAMED} == {(row, form) for row in ROWS for form in FORMS if not row.within}
    assert {case.values[0] for case in FORMS_WITHIN} == set(WITHIN)
    assert {case.values[1] for case in FORMS_WITHIN} == set(FORMS)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_file_as_it_should_be_is_read(row: Row, runner: Runner, place: Path) -> None:
    path = row.copy(place)
    answer = runner.run(row.case(place, path), place)
    if "config" in row.case(place, path).get("command", ()):
        assert answer["code"] in (OK, USAGE), answer  # required settings are missing
    elif row.name == "outbox":
        assert "no outbox" in answer["err"] or answer["code"] in STORAGE_ENDS, answer  # it is the journal of something else
    else:
        assert answer["code"] == OK, answer


@pytest.mark.parametrize(("row", "form"), FORMS_OF_NAMED + FORMS_WITHIN)
def test_a_file_in_another_form_is_refused_with_a_sentence(row: Row, form: Callable[[Row, Path], None], runner: Runner, place: Path) -> None:
    path = row.copy(place)
    form(row, path)
    user = _another_user(place, path) if form is another_users else {}
    before = _contents(place)
    answer = runner.run(row.case(place, path) | user, place)
    check(answer, row.ends if form in NEVER_READ else (OK, *row.ends))
    after = _contents(place)
    assert {name: each for name, each in after.items() if not name.startswith("new")} == before, "nothing else is written"
    if answer["code"] != OK:
        assert not (place / "new").exists() or row.kind is untrusted_files.EXPORT
        assert len(answer["err"].splitlines()) + len(answer["out"].splitlines()) < 120


@pytest.mark.parametrize("row", WITHIN, ids=str)
def test_a_link_in_a_directory_that_was_handed_over_is_not_followed(row: Row, runner: Runner, place: Path) -> None:
    path = row.copy(place)
    elsewhere = place / "elsewhere"
    shutil.move(path, elsewhere)
    path.symlink_to(elsewhere)
    answer = runner.run(row.case(place, path), place)
    check(answer, row.ends)
    assert "symbolic link" in answer["err"] + answer["out"]


@pytest.mark.parametrize("row", NAMED, ids=str)
def test_a_link_to_a_file_that_a_person_names_is_followed(row: Row, runner: Runner, place: Path) -> None:
    """As Kubernetes mounts settings and secrets."""
    path = row.copy(place)
    plain = runner.run(row.case(place, path), place)
    shutil.rmtree(place / "new", ignore_errors=True)
    shutil.move(path, place / "elsewhere")
    path.symlink_to(place / "elsewhere")
    assert runner.run(row.case(place, path), place)["code"] == plain["code"]


@pytest.mark.parametrize(("row", "name"), NAMES_WITHIN)
def test_other_names_in_a_directory_change_nothing(row: Row, name: str, runner: Runner, place: Path) -> None:
    path = row.copy(place)
    for folder in (place / "given", path.parent):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / name).write_bytes(b"strange")
    answer = runner.run(row.case(place, path), place)
    check(answer, (OK, *row.ends))


@pytest.mark.parametrize(("row", "name"), NAMES_OF_NAMED)
def test_a_file_of_a_strange_name_is_refused_or_read(row: Row, name: str, runner: Runner, place: Path) -> None:
    path = row.copy(place)
    strange = place / name
    path.rename(strange)
    check(runner.run(row.case(place, strange), place), (OK, *row.ends))


def test_each_kind_of_file_has_a_row() -> None:
    assert {row.kind for row in ROWS} - {None} == set(untrusted_files.KINDS)
    assert all(kind.why and kind.bytes_max > 0 for kind in untrusted_files.KINDS)


def test_each_file_of_a_directory_has_a_row(place: Path) -> None:
    """A new file in a storage directory, a backup or a journal appears here."""
    storage_directory(place / "storage")
    in_backup(MANIFEST)(place)
    journal(place / "journal")
    suffixes = {each.name if "." not in each.name or each.name.startswith("waltz") else each.suffix for each in place.rglob("*") if each.is_file()}
    assert suffixes == {CONTROL_FILE, FENCE_FILE, MANIFEST, METADATA, ".seg", ".idx", ".tix", ".wal", ".index", ".jrh", ".salt", "waltz.lock"}


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_only_its_user_reads_what_a_command_writes(umask: int, runner: Runner, place: Path) -> None:
    given = storage_directory(place / "given")
    commands = [
        ["storage", "backup", str(given), str(place / "backup"), "--mib-per-s", "0"],
        ["storage", "restore", str(place / "backup"), str(place / "restored")],
        ["journal", "import", str(place / "a" / "b" / "journal"), "--from", str(export(place))],
        ["journal", "export", str(place / "a" / "b" / "journal"), "--to", str(place / "exported.jsonl")],
    ]
    for words in commands:
        answer = runner.run({"command": words, "umask": umask}, place)
        assert answer["code"] == OK, answer
    for name in ("backup", "restored", "a", "exported.jsonl"):
        root = place / name
        for each in [root, *root.rglob("*")]:
            status = each.lstat()
            mode = stat.S_IMODE(status.st_mode)
            assert mode == (0o700 if each.is_dir() else 0o600), f"{each.relative_to(place)} has the mode {mode:o}"
