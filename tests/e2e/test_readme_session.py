"""The session of the README, pasted as it stands into the shells that it names: two bash, `python` and `pyspark`.

Its second step appends what is no JSON ("hello"), so everything after it runs on a log that somebody already used.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 240
"""A submission takes ten seconds alone, minutes on a machine that does other things."""

pytestmark = pytest.mark.timeout(900)


def _blocks() -> dict[str, str]:
    """Marked blocks by name."""
    return dict(re.findall(r"<!-- session: (\w+) -->\n```\w+\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The project's folder after `make setup`, with a `var` of its own."""
    for name in ("conf", "jobs", ".cache"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / ".venv").symlink_to(Path(sys.prefix))
    return tmp_path


@pytest.fixture
def environment() -> dict[str, str]:
    """A user's. `-i`: has `python` and `pyspark` take what is piped in as typed at their prompt."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK", "PYSPARK", "PYTHON", "VIRTUAL_ENV"))}
    return kept | {"PYSPARK_DRIVER_PYTHON_OPTS": "-i"}


@pytest.fixture
def dev(folder: Path, environment: dict[str, str]) -> Iterator[None]:
    """The first terminal."""
    with (folder / "terminal").open("w") as told:
        process = subprocess.Popen(["bash", "-c", _blocks()["dev"]], cwd=folder, env=environment, stdout=told, stderr=told, start_new_session=True)
        try:
            deadline = time.monotonic() + PATIENCE_S
            log = folder / "var" / "dev.log"
            while not (log.exists() and "ready cluster=" in log.read_text()):
                assert process.poll() is None, (folder / "terminal").read_text()
                assert time.monotonic() < deadline, (folder / "terminal").read_text()
                time.sleep(0.1)
            yield
        finally:
            os.killpg(process.pid, signal.SIGINT)
            try:
                process.wait(60)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)


def _typed(what: str, folder: Path, environment: dict[str, str], *, typed: str = "") -> str:
    """What the second terminal shows for a command, with something typed at its prompt."""
    command = f"{_blocks()['terminal']}\n{what}"
    done = subprocess.run(
        ["bash", "-e", "-c", command], cwd=folder, env=environment, input=typed, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, f"{what}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert "Error" not in done.stderr, done.stderr[-3000:]
    return done.stdout


@pytest.mark.usefixtures("dev")
def test_the_readmes_session_works_as_pasted(folder: Path, environment: dict[str, str]) -> None:
    readme, blocks = (ROOT / "README.md").read_text(), _blocks()
    assert list(blocks) == ["dev", "terminal", "hello", "python", "pyspark", "job", "sql"]
    assert "hello" in _typed(blocks["hello"], folder, environment)
    told = _typed("python -i", folder, environment, typed=blocks["python"])
    assert "refused: lock conflict" in told
    assert "1 b'{" in told
    pyspark = re.search(r"`(pyspark [^`]+)`", readme)
    assert pyspark is not None
    assert re.search(r"\|\s*0\|\s*2\|", _typed(pyspark[1], folder, environment, typed=blocks["pyspark"]))
    told = _typed(blocks["job"], folder, environment)
    done = re.search(r"^done .*$", readme, re.MULTILINE)
    assert done is not None
    assert done[0] in told.splitlines()
    assert re.search(r"12A\s+Ada\s+1", _typed(blocks["sql"], folder, environment))
