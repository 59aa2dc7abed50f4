"""Conditions of a machine that would end in the exception of a tool underneath: one sentence each."""

from __future__ import annotations

import errno
import os
import resource
import tempfile
from pathlib import Path

import pytest

from waltz_log import machine_faults
from waltz_log.cli.dev import refuse_left_over
from waltz_log.errors import InvalidRequest
from waltz_log.processes.socket_folder import SocketFolder


def test_a_user_without_a_name_is_refused() -> None:
    assert machine_faults.unnamed_user() is None
    found = machine_faults.unnamed_user(4_000_001)
    assert found is not None
    assert "user id 4000001 has no entry in the password file" in found


def test_a_hard_limit_of_few_files_is_refused_and_a_soft_one_is_raised() -> None:
    assert machine_faults.low_file_limit((256, resource.RLIM_INFINITY)) is None
    found = machine_faults.low_file_limit((256, 256))
    assert found is not None
    assert "only 256 files" in found
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, before[1]))
        machine_faults.raise_file_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 1024
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_what_to_raise_is_said_where_no_more_files_can_be_opened() -> None:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert f"all {limit} files open" in machine_faults.not_opened(OSError(errno.EMFILE, "Too many open files"))
    assert "fs.file-max" in machine_faults.not_opened(OSError(errno.ENFILE, "Too many open files in system"))
    assert machine_faults.not_opened(OSError(errno.ECONNABORTED, "Software caused connection abort")) == "Software caused connection abort"


def test_a_folder_with_a_colon_or_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine_faults.unusable_folder(tmp_path) is None
    found = machine_faults.unusable_folder(tmp_path / "a:b")
    assert found is not None
    assert "has a colon" in found
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere
    found = machine_faults.unusable_folder(tmp_path)
    assert found is not None
    assert "this folder belongs to " in found


def test_code_of_another_clone_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "new" / "platform" / "log" / "waltz_log").mkdir(parents=True)
    found = machine_faults.foreign_code(tmp_path / "new", str(tmp_path / "old" / "waltz_log" / "x.py"))
    assert found is not None
    assert "run make setup here" in found
    assert machine_faults.foreign_code(tmp_path / "new", str(tmp_path / "new" / "platform" / "log" / "waltz_log" / "x.py")) is None
    assert machine_faults.foreign_code(tmp_path, str(tmp_path / "old" / "x.py")) is None, "not a checkout"


def test_an_argument_that_is_not_utf8_is_refused() -> None:
    assert machine_faults.undecodable(["plätze", "--x"]) is None
    found = machine_faults.undecodable(["--table", os.fsdecode(b"pl\xe4tze")])
    assert found is not None
    assert "not UTF-8" in found


def test_a_folder_that_runs_nothing_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = os.statvfs(tmp_path)
    assert (machine_faults.java_temporary(tmp_path) is None) is not bool(found.f_flag & os.ST_NOEXEC)
    fields = list(found)
    fields[8] |= os.ST_NOEXEC
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result(fields))
    problem = machine_faults.java_temporary(tmp_path)
    assert problem is not None
    assert "noexec" in problem


def test_certificates_of_another_cluster_are_refused_for_one_without() -> None:
    left = {"WALTZ_TLS_CERTIFICATE": "/old.pem", "WALTZ_TLS_KEY": "/old.key", "WALTZ_CLUSTER": "c"}
    with pytest.raises(InvalidRequest, match=r"WALTZ_TLS_CERTIFICATE is set.*unset WALTZ_TLS_CERTIFICATE WALTZ_TLS_KEY, or start it with --secure"):
        refuse_left_over(False, left)
    refuse_left_over(True, left)
    refuse_left_over(False, {"WALTZ_TLS_KEY": "", "WALTZ_CLUSTER": "c"})


def test_sockets_lie_elsewhere_where_the_path_of_temporary_files_is_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 120)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    folder = SocketFolder()
    try:
        assert len(f"{folder.path}/1234") < 104
    finally:
        folder.close()
