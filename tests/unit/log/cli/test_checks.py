"""What `waltz doctor` and `make setup` say about a machine that lacks something: one sentence, with what to install."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from waltz_log.cli import checks
from waltz_log.cli.main import run
from waltz_log.coordination.java import JavaMissing, find_java, parse_version
from waltz_log.exit_codes import LACKING

LOG_ROOT = Path(checks.__file__).parents[2]


def _java(folder: Path, reported: str, code: int = 0) -> Path:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{reported}' >&2\nexit {code}\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(
    ("reported", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "25-ea" 2025-09-16', 25),
        ("something else", None),
    ],
)
def test_the_version_of_java_is_read(reported: str, version: int | None) -> None:
    assert parse_version(reported) == version


def test_java_of_java_home_goes_before_the_path(tmp_path: Path) -> None:
    mine = _java(tmp_path / "home", 'openjdk version "21.0.1"')
    other = _java(tmp_path / "other", 'openjdk version "17.0.1"')
    assert find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(other.parent)}) == (mine, 21)
    assert find_java({"PATH": str(other.parent)}) == (other, 17)


def test_a_java_of_another_version_is_refused_by_name(tmp_path: Path) -> None:
    program = _java(tmp_path, 'openjdk version "11.0.2"')
    with pytest.raises(JavaMissing, match=f"{program} is Java 11.*install Java 17 or 21"):
        find_java({"PATH": str(program.parent)})


def test_no_java_is_reported_with_what_to_install(tmp_path: Path) -> None:
    check = checks.check_java({"PATH": str(tmp_path)})
    assert not check.ok
    assert "install Java 17 or 21" in check.sentence
    check = checks.check_java({"JAVA_HOME": str(tmp_path), "PATH": ""})
    assert f"JAVA_HOME holds none: {tmp_path}" in check.sentence


def test_a_full_disk_is_reported_with_what_to_free(tmp_path: Path) -> None:
    assert checks.check_disk(tmp_path / "not" / "yet" / "there", 1).ok
    check = checks.check_disk(tmp_path, 10**18)
    assert not check.ok
    assert str(tmp_path) in check.sentence
    assert "free at least" in check.sentence


def test_delta_jars_count_only_when_their_folder_is_whole(tmp_path: Path) -> None:
    folder = tmp_path / checks.DELTA_JARS
    folder.mkdir(parents=True)
    (folder / "io.delta_delta-spark.jar").write_bytes(b"half")
    check = checks.check_delta_jars(tmp_path)
    assert not check.ok
    assert "make setup" in check.sentence
    (folder / "COORDINATES").write_text("io.delta:delta-spark_4.0_2.13:3.9.9\n")
    assert not checks.check_delta_jars(tmp_path).ok, "of another version"
    (folder / "COORDINATES").write_text(f"{checks.DELTA_JARS_MARKER}\n")
    assert checks.check_delta_jars(tmp_path).ok


def test_the_checks_run_before_anything_is_installed(tmp_path: Path) -> None:
    command = [sys.executable, "-S", "-m", "waltz_log.cli.checks"]
    environment = {"PYTHONPATH": str(LOG_ROOT), "PATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("setup: java: ")


def test_doctor_reports_what_is_missing_and_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert run(["doctor"]) == LACKING
    assert "JAVA_HOME" in capsys.readouterr().out
    assert run(["doctor", "--output", "json"]) == LACKING
    found = {check["name"]: check for check in json.loads(capsys.readouterr().out)}
    assert not found["java"]["ok"]
    assert found["python"]["ok"]
    assert "delta jars" not in found, "only looked for in a checkout"
