"""Memory that was freed is used again without page faults, and what an operator chose stays."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from waltz_log.allocator import CHOSEN_BY_OPERATOR

BLOCKS = """
import resource
from waltz_log.allocator import keep_freed_memory

done = keep_freed_memory() if {keep} else None

def work():
    pieces = [bytes(bytearray(1 << 20)) for _ in range(6)]

work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    work()
print(done, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(keep: bool, **environment: str) -> tuple[str, int]:
    """What it said, and the page faults of 50 times six MiB, each copied once."""
    kept = {name: value for name, value in os.environ.items() if name not in CHOSEN_BY_OPERATOR}
    code = BLOCKS.format(keep=keep)
    done = subprocess.run([sys.executable, "-c", code], env=kept | environment, capture_output=True, text=True, timeout=60, check=True)
    told, count = done.stdout.split()
    return told, int(count)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has the switch")
def test_freed_memory_is_used_again_without_asking_the_system() -> None:
    _, given_back = faults(keep=False)
    told, kept = faults(keep=True)
    assert told == "True"
    assert given_back > 10_000, "this must look at what the switch changes"
    assert kept < given_back / 20


def test_what_an_operator_chose_stays() -> None:
    told, _ = faults(keep=True, MALLOC_TRIM_THRESHOLD_="131072")
    assert told == "False"
