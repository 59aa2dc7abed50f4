"""Each class of error has its exit code, and what the command line refuses is reported in one line."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from waltz_log import errors, exit_codes
from waltz_log.cli.main import run
from waltz_log.coordination.embedded import ZooKeeperJarsMissing
from waltz_log.coordination.java import JavaMissing
from waltz_log.errors import WaltzError, exit_code_of
from waltz_log.exit_codes import CONFLICT, LACKING, MACHINE, REFUSED, UNAVAILABLE, USAGE


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidSetting(name="x", reason="y", nearest=None), USAGE),
        (errors.ClusterUnavailable(address="a", reason="b"), UNAVAILABLE),
        (errors.GaveUp(partition=1, reason="b", attempts=2, elapsed_s=1, winner=None, limit="attempts"), UNAVAILABLE),
        (errors.ClusterKeyMismatch(where="a:1"), REFUSED),
        (errors.LockConflict(partition=0, winner=3), CONFLICT),
        (errors.StorageFailed(partition=0, reason="full"), MACHINE),
        (OSError("cannot listen"), MACHINE),
        (JavaMissing(reason="none"), LACKING),
        (ZooKeeperJarsMissing(reason="none"), LACKING),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_exit_code_reports_the_class(error: WaltzError | OSError, code: int) -> None:
    assert exit_code_of(error) == code


def test_the_table_of_exit_codes_has_a_row_for_each_code() -> None:
    documented = [int(code) for code in re.findall(r"^\| (\d+) \|", exit_codes.__doc__ or "", re.MULTILINE)]
    assert documented == sorted({getattr(exit_codes, name) for name in exit_codes.__all__})


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        (["storag"], "did you mean 'storage'"),
        (["dev", "--partitons", "3"], "--partitions"),
        (["dev", "--partitions", "0"], "--partitions"),
        (["cluster", "creat"], "did you mean 'create'"),
        (["cluster", "status", "nowhere"], "wanted host:port"),
        (["doctor", "--output", "jsn"], "did you mean json"),
        (["server", "--config", "no-such-file"], "no-such-file"),
        (["server", "--log-level", "infos"], "did you mean info"),
        (["cluster", "create", "127.0.0.1:1/x"], "missing option"),
        (["zookeeper", "--listen", "2181"], "must be host:port"),
    ],
)
def test_an_error_on_the_command_line_is_reported_in_one_line(arguments: list[str], reported: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == USAGE
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("waltz: ")
    assert output.err.count("\n") == 1
    assert reported in output.err.lower()


def test_an_unknown_setting_in_a_file_is_refused_with_the_nearest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "server.yaml"
    path.write_text("coordinator: 127.0.0.1:1/x\nsession_timeout: 3\n")
    assert run(["server", "--config", str(path)]) == USAGE
    assert "session_timeout: no such setting (did you mean session_timeout_s?)" in capsys.readouterr().err


def test_a_bare_command_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == USAGE
    output = capsys.readouterr()
    assert "storage" in output.out
    assert output.err == ""


def test_help_imports_no_component() -> None:
    code = (
        "import sys; from waltz_log.cli.main import run; run(['--help']); "
        "heavy = {'grpc', 'kazoo', 'numpy', 'pydantic', 'yaml', 'pyspark'} & set(sys.modules); sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
