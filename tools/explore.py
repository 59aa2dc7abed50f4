"""`make explore`: runs property tests with new examples, one test file after the other, until the time is over.

Each file runs in a process of its own with a random seed. The output of a run that failed is saved under `var/explore/`: the command that runs the
same examples again, the falsifying example, and the blob that reproduces it (`@reproduce_failure`). Exits with 1 if any run failed.
"""

from __future__ import annotations

import argparse
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IMPORTS_HYPOTHESIS = re.compile(r"^(?:from|import) hypothesis\b", re.MULTILINE)
NO_TESTS_COLLECTED = 5


def property_test_files(folder: Path) -> list[Path]:
    """Test files that use Hypothesis."""
    return sorted(path for path in folder.rglob("test_*.py") if IMPORTS_HYPOTHESIS.search(path.read_text()))


def rounds(files: Sequence[Path], rng: random.Random) -> Iterator[tuple[Path, int]]:
    """Every file once, in random order and each with a seed, then all of them again, without end."""
    while True:
        for path in rng.sample(files, len(files)):
            yield path, rng.getrandbits(32)


def explore(files: Sequence[Path], seconds: float, saved: Path, rng: random.Random, runs_max: int | None = None) -> int:
    """The number of failed runs. A run that is interrupted at the end counts neither as passed nor as failed."""
    deadline = time.monotonic() + seconds
    passed = failed = 0
    for path, seed in rounds(files, rng):
        left_s = deadline - time.monotonic()
        if left_s <= 0 or passed + failed == runs_max:
            break
        command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "--hypothesis-profile=explore", f"--hypothesis-seed={seed}", str(path)]
        try:
            run = subprocess.run(command, cwd=ROOT, timeout=left_s, capture_output=True, text=True, check=False)
        except subprocess.TimeoutExpired:
            break
        if run.returncode in (0, NO_TESTS_COLLECTED):
            passed += 1
            continue
        failed += 1
        saved.mkdir(parents=True, exist_ok=True)
        report = saved / f"{path.stem}-{seed}.txt"
        replay = f"pytest --hypothesis-profile=explore --hypothesis-seed={seed} {path}"
        report.write_text(f"{replay}\n\n{run.stdout}{run.stderr}")
        print(run.stdout, flush=True)
        print(f"explore: failed, saved in {report}; replay: {replay}", flush=True)
    print(f"explore: runs={passed + failed} failed={failed} files={len(files)}")
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--saved", type=Path, default=ROOT / "var" / "explore")
    parser.add_argument("files", nargs="*", type=Path, help="test files; all that use Hypothesis by default")
    arguments = parser.parse_args()
    files = arguments.files or [path.relative_to(ROOT) for path in property_test_files(ROOT / "tests")]
    return 1 if explore(files, arguments.seconds, arguments.saved, random.Random()) else 0


if __name__ == "__main__":
    sys.exit(main())
