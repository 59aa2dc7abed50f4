"""The probe of a directory of this machine: hard links, by which `deltalake` creates a commit only if it does not exist."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from waltz_delta.engine import store_probe
from waltz_delta.engine.store_probe import refusal_of_directory
from waltz_delta.errors import StoreUnavailable


@pytest.fixture(autouse=True)
def unproven(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_probe, "_proven_devices", set())


@pytest.mark.parametrize("place", [".", "t", "lake/ports/t"])
def test_a_directory_with_hard_links_is_written_and_the_probe_leaves_nothing(tmp_path: Path, place: str) -> None:
    (tmp_path / "other").touch()
    assert refusal_of_directory("t", str(tmp_path / place)) is None
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_each_file_system_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refusal_of_directory("t", str(tmp_path / "t")) is None
    monkeypatch.setattr(os, "link", lambda *_: pytest.fail("asked again"))
    assert refusal_of_directory("u", str(tmp_path / "u")) is None


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK])
def test_a_file_system_without_hard_links_is_named_and_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", refuse)
        found = refusal_of_directory("t", str(tmp_path / "t"))
    expected = f"the file system of its directory makes no hard links, by which deltalake creates a commit ({os.strerror(code)})"
    assert (found, [*tmp_path.iterdir()]) == (expected, [])
    assert refusal_of_directory("t", str(tmp_path / "t")) is None


def test_a_link_that_replaces_a_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", shutil.copy)
    assert "replaces a file by a hard link" in str(refusal_of_directory("t", str(tmp_path)))
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.ENOSPC])
def test_where_no_file_can_be_made_a_reader_goes_on_and_a_fault_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def refuse(path: Path, *_: Any, **__: Any) -> None:
        raise OSError(code, os.strerror(code), str(path))

    monkeypatch.setattr(Path, "touch", refuse)
    if code != errno.ENOSPC:
        assert refusal_of_directory("t", str(tmp_path / "t")) is None
        assert store_probe._proven_devices == set(), "nothing is known of it"
    else:
        with pytest.raises(StoreUnavailable, match=r"No space left on device.*path=t$"):
            refusal_of_directory("t", str(tmp_path / "t"))
