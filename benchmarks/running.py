"""What every command that measures has in common: an empty folder, the figures on the screen and in a file, and the exit code."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from rich.console import Console

from benchmarks.measurement import Measurement, table, write
from waltz_log.errors import WaltzError

__all__ = ["LATEST", "PROJECT", "run_measurements", "screen"]

PROJECT = Path(__file__).resolve().parents[1]
LATEST = PROJECT / "benchmarks" / "latest.json"
STOPPED = 130
"""The exit code after Ctrl-C."""


def screen() -> Console:
    return Console() if sys.stdout.isatty() else Console(width=200)


def run_measurements(name: str, measure: Callable[[Path], list[Measurement]], output: Path = LATEST) -> list[Measurement] | int:
    """The figures, shown and written; or the exit code of a run that failed or was stopped. `measure` is given an empty folder of that name, which is
    removed in the end."""
    console = screen()
    directory = PROJECT / "var" / name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    began_s = time.monotonic()
    try:
        found = measure(directory)
    except KeyboardInterrupt:
        return STOPPED
    except (WaltzError, RuntimeError, ExceptionGroup) as error:
        console.print(f"the benchmark failed: {_first(error)}", style="red", markup=False, highlight=False)
        return 1
    finally:
        with suppress(OSError):
            shutil.rmtree(directory)
    write(output, found)
    console.print(table(found))
    console.print(f"{time.monotonic() - began_s:.0f} s; written to {output}", highlight=False)
    return found


def _first(error: Exception) -> Exception:
    """The errors inside an exception group. Raises the error again if it is a defect of the benchmark."""
    if isinstance(error, ExceptionGroup):
        return _first(error.exceptions[0])
    if not isinstance(error, WaltzError | RuntimeError):
        raise error
    return error
