"""What `waltz doctor` and `make setup` say about a machine that lacks something: one sentence, with what to install."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from waltz_log.cli import checks
from waltz_log.cli.main import run
from waltz_log.coordination.java import OWN_JAVA, JavaMissing, find_java, parse_version
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
        find_java({"PATH": str(program.parent)}, prefix=str(tmp_path))


def test_a_java_that_does_not_do_gives_way_to_the_next_one(tmp_path: Path) -> None:
    old = _java(tmp_path / "old", 'java version "1.8.0_392"')
    fit = _java(tmp_path / "fit", 'openjdk version "17.0.1"')
    assert find_java({"JAVA_HOME": str(tmp_path / "old"), "PATH": str(fit.parent)}) == (fit, 17)
    own = _java(tmp_path / "environment" / OWN_JAVA, 'openjdk version "21.0.8"')
    assert find_java({"PATH": str(old.parent)}, prefix=str(tmp_path / "environment")) == (own, 21)
    with pytest.raises(JavaMissing, match=r"JAVA_HOME holds none: /nonexistent; .*old/bin/java is Java 8"):
        find_java({"JAVA_HOME": "/nonexistent", "PATH": str(old.parent)}, prefix=str(tmp_path))


@pytest.fixture
def without_own_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of these tests may have the Java that set-up brings."""
    monkeypatch.setattr(checks, "find_java", partial(find_java, prefix=str(tmp_path)))


@pytest.mark.usefixtures("without_own_java")
def test_a_java_without_the_module_that_spark_adds_does_not_do_for_spark(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text(
        '#!/bin/sh\ncase "$1" in --add-modules*) echo "java.lang.module.FindException: Module jdk.incubator.vector not found" >&2; exit 1;; esac\n'
        "echo 'openjdk version \"21.0.8\"' >&2\n"
    )
    program.chmod(0o755)
    assert find_java({"PATH": str(program.parent)}, prefix=str(tmp_path)) == (program, 21)
    check = checks.check_java({"PATH": str(program.parent)})
    assert not check.ok
    assert "lacks the module jdk.incubator.vector" in check.sentence


@pytest.mark.usefixtures("without_own_java")
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


def test_delta_jars_count_only_when_each_is_the_pinned_file(tmp_path: Path) -> None:
    folder = tmp_path / checks.DELTA_JARS
    folder.mkdir(parents=True)
    pins = tmp_path / checks.DELTA_PINS
    pins.parent.mkdir()
    pins.write_text(f"{hashlib.sha256(b'whole').hexdigest()}  io.delta:delta-spark_4.2_2.13:4.4.0\n")
    jar = folder / "io.delta_delta-spark_4.2_2.13-4.4.0.jar"
    for content, found in ((None, "is missing"), (b"whol", "is not the pinned file, of 4 bytes")):
        if content is not None:
            jar.write_bytes(content)
        check = checks.check_delta_jars(tmp_path)
        assert not check.ok
        assert found in check.sentence
        assert "make setup" in check.sentence
    jar.write_bytes(b"whole")
    assert checks.check_delta_jars(tmp_path).ok
    (folder / "other_other-1.jar").write_bytes(b"")
    assert "is not one of ours" in checks.check_delta_jars(tmp_path).sentence


def test_the_checks_run_before_anything_is_installed(tmp_path: Path) -> None:
    program = "from waltz_log.cli import checks; print(checks.check_java().sentence)"
    environment = {"PYTHONPATH": str(LOG_ROOT), "PATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-S", "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "install Java 17 or 21" in done.stdout


def test_doctor_reports_what_is_missing_and_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert run(["doctor"]) == LACKING
    assert "JAVA_HOME" in capsys.readouterr().out
    assert run(["doctor", "--output", "json"]) == LACKING
    found = {check["name"]: check for check in json.loads(capsys.readouterr().out)}
    assert not found["java"]["ok"]
    assert found["python"]["ok"]
    assert "delta jars" not in found, "only looked for in a checkout"
