"""Pages that a reader pastes into terminals, run as they stand there: marked blocks, the project's folder, and terminals."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 360
"""A submission takes ten seconds alone, minutes on a machine that does other things."""


def blocks(page: str, marker: str = "session") -> dict[str, str]:
    """Blocks marked `<!-- marker: name -->`, by name, in the order of the page."""
    return dict(re.findall(rf"<!-- {marker}: ([\w./]+) -->\n```\w+\n(.*?)```", page, re.DOTALL))


def make_folder(path: Path) -> Path:
    """The project's folder after `make setup`, with a `var` of its own. The environment names `platform` by paths relative to itself."""
    for name in ("conf", "jobs", "platform", ".cache"):
        (path / name).symlink_to(ROOT / name)
    (path / ".venv").symlink_to(Path(sys.prefix))
    return path


def user_environment() -> dict[str, str]:
    """A user's. `-i`: has `python` and `pyspark` treat what is piped in as typed at their prompt."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK", "PYSPARK", "PYTHON", "VIRTUAL_ENV"))}
    return kept | {"PYSPARK_DRIVER_PYTHON_OPTS": "-i"}


@contextmanager
def running(command: str, folder: Path, output: Path, *, until: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """A terminal in which a command runs until Ctrl-C; entered when its output has the text `until`."""
    with output.open("w") as shown:
        process = subprocess.Popen(
            ["bash", "-c", command], cwd=folder, env=user_environment(), stdout=shown, stderr=shown, stdin=subprocess.DEVNULL, start_new_session=True
        )
        try:
            deadline = time.monotonic() + PATIENCE_S
            while until not in output.read_text():
                assert process.poll() is None, output.read_text()
                assert time.monotonic() < deadline, output.read_text()
                time.sleep(0.1)
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


def pasted(command: str, folder: Path, *, typed: str = "") -> str:
    """What a terminal shows for a command, with something typed at its prompt."""
    done = subprocess.run(
        ["bash", "-e", "-c", command],
        cwd=folder,
        env=user_environment(),
        input=typed,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert "Error" not in done.stderr, done.stderr[-3000:]
    return done.stdout
