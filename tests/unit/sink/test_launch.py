"""The programs of Spark as the README's shells find them: whatever the caller's variables say, it is the environment's Spark."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from waltz_delta import launch
from waltz_log.coordination.java import OWN_JAVA
from waltz_log.exit_codes import LACKING


def test_a_program_becomes_that_of_the_installed_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    import pyspark

    got: list[tuple[str, list[str], dict[str, str]]] = []

    class Became(BaseException):
        pass

    def execve(path: str, arguments: list[str], environment: dict[str, str]) -> None:
        got.append((path, arguments, environment))
        raise Became

    monkeypatch.setattr(os, "execve", execve)
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "jupyter")
    with pytest.raises(Became):
        launch.main(["spark-submit", "--version", "plätze"])
    ((path, arguments, environment),) = got
    home = str(Path(pyspark.__file__).parent)
    assert path == f"{home}/bin/spark-submit"
    assert arguments == [path, "--version", "plätze"]
    python = shutil.which(environment["PYSPARK_DRIVER_PYTHON"], path=environment["PATH"])  # its name alone, where its path has a space
    assert python is not None
    assert (environment["SPARK_HOME"], Path(python).parent) == (home, Path(sys.executable).parent)


def test_the_code_of_another_clone_is_named_before_the_program_starts(tmp_path: Path) -> None:
    """A copied environment leads to the clone that it was made in."""
    (tmp_path / "platform" / "log" / "waltz_log").mkdir(parents=True)
    for command in (["waltz_delta.launch", "spark-submit", "--version"], ["waltz_log.cli", "--version"]):
        run = [sys.executable, "-P", "-m", *command]
        done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
        assert re.match(r"(spark-submit|waltz): waltz_log is imported from .+, not from this folder; run make setup here\n", done.stderr)


def test_letters_that_java_would_lose_are_refused_before_it_starts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        launch.main(["spark-submit", os.fsdecode(b"pl\xe4tze")])
    assert ended.value.code == LACKING
    assert capsys.readouterr().err.startswith("spark-submit: an argument is not UTF-8")
    monkeypatch.setattr(launch, "utf8_locale", lambda environment: None)
    assert launch.fault(["seats"], {}) is None
    found = launch.fault(["plätze"], {})
    assert found is not None
    assert "no locale with UTF-8" in found


@pytest.mark.skipif((Path(sys.prefix) / OWN_JAVA).exists(), reason="this environment brings a Java of its own")
def test_without_java_one_sentence_says_what_to_install(tmp_path: Path) -> None:
    command = [sys.executable, "-I", "-m", "waltz_delta.launch", "spark-sql", "-e", "SELECT 1"]
    given = {"PATH": str(tmp_path), "JAVA_HOME": str(tmp_path)}
    done = subprocess.run(command, env=given, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == LACKING
    assert done.stderr.startswith("spark-sql: no usable java")
    assert done.stderr.count("\n") == 1


def test_a_catalog_in_use_is_noticed(tmp_path: Path) -> None:
    assert not launch.metastore_used(tmp_path)
    lock = tmp_path / "metastore_db" / "dbex.lck"
    lock.parent.mkdir()
    lock.touch()
    assert not launch.metastore_used(tmp_path)
    program = f"import fcntl, sys; f = open({str(lock)!r}, 'r+b'); fcntl.lockf(f, fcntl.LOCK_EX); print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        assert launch.metastore_used(tmp_path)
        other.communicate(timeout=30)
    assert not launch.metastore_used(tmp_path)
