"""How a driver's process ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

JOBS = sorted((Path(__file__).resolve().parents[4] / "jobs").glob("*.py"))

PROGRAM = """\
import atexit
import ctypes
import os
import signal
import sys

from waltz_delta.base.ending import end_process

dies = ctypes.CFUNCTYPE(None)(lambda: os.kill(os.getpid(), signal.SIGSEGV))
ctypes.pythonapi.Py_AtExit(dies)
atexit.register(lambda: print("registered for the exit"))
sys.stdout.write("buffered, then ")
{end}(3)
"""
"""A library that dies after the last frame of Python, as `deltalake` does now and then. `Py_AtExit` is called there."""


def ended(end: str) -> tuple[int, str]:
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(end=end)], capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout


def test_a_driver_ends_with_its_code_although_a_library_dies_after_the_last_frame_of_python() -> None:
    assert ended("sys.exit")[0] < 0, "the program does not die, so this test shows nothing"
    assert ended("end_process") == (3, "buffered, then registered for the exit\n")


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.stem)
def test_every_job_ends_so(job: Path) -> None:
    text = job.read_text()
    assert text.count("end_process(") == 1
    assert "exit(" not in text
