"""The directory of a demo: emptied at the start, and used by one demo at a time."""

from __future__ import annotations

import fcntl
import itertools
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TextIO

from demo.processes import ROOT
from waltz_log.errors import InvalidSetting

__all__ = ["claimed", "clear"]

DEFAULT: Final = ROOT / "var" / "demo"
MARKER: Final = ".waltz-demo"


@contextmanager
def claimed(directory: Path | None, default: Path = DEFAULT) -> Iterator[Path]:
    """The directory, for as long as the context lasts. None: `default`, or, while another demo uses that, the first free one of `demo-2`, `demo-3`
    and so on beside it. Raises `InvalidSetting` if another demo uses `directory`."""
    for number in itertools.count(1):
        chosen = directory or (default if number == 1 else default.with_name(f"{default.name}-{number}"))
        if (held := _lock(chosen)) is not None:
            with held:
                yield chosen
            return
        if directory is not None:
            raise InvalidSetting(name="--directory", reason=f"another demo uses {directory}", nearest=None)


def _lock(directory: Path) -> TextIO | None:
    """The open file with the lock of the directory, which is beside it because the directory is emptied; None if another process has the lock."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    file = directory.with_name(f".{directory.name}.lock").open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def clear(directory: Path) -> None:
    """Makes an empty directory. Removes what an earlier demo left there and nothing else."""
    marker = directory / MARKER
    if directory.exists() and any(directory.iterdir()) and not marker.exists():
        raise InvalidSetting(name="--directory", reason=f"{directory} holds something that is not of a demo", nearest=None)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    marker.write_text("python -m demo empties this directory at its start\n")
