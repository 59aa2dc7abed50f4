"""Runs the unit tests under other versions of Python: `make test-versions`. Each gets an environment with all packages, kept in `.venv/versions`.

Without names it runs under each version that `requires-python` allows and this machine has, but for the one of `.venv`. The package index has no
interpreters, so those that are not installed are listed and not tested.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.clean_pip import run_pip

PROMISED = ("3.11", "3.12", "3.13")
"""Each has wheels of all pinned packages."""

PROBE = "import sys; print('%d.%d' % sys.version_info[:2])"


def found() -> dict[str, str]:
    """Promised versions that are installed, to their programs: on the path, or under a version manager that puts them all in one folder."""
    programs = {}
    for version in PROMISED:
        places = [shutil.which(f"python{version}"), *sorted(map(str, (Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python3")))]
        for program in filter(None, places):
            done = subprocess.run([program, "-c", PROBE], capture_output=True, text=True, check=False)  # a shim may name none
            if done.stdout.strip() == version:
                programs[version] = program
                break
    return programs


def run(version: str, program: str) -> int:
    """The exit code of the unit tests."""
    environment = Path(".venv/versions") / version
    python = environment / "bin" / "python"
    if not (environment / "installed").exists():
        print(f"versions: installing the packages for Python {version} (some minutes)", flush=True)
        shutil.rmtree(environment, ignore_errors=True)
        subprocess.run([program, "-m", "venv", str(environment)], check=True)
        arguments = ["install", "--constraint", "constraints.txt", "--use-pep517", "--editable", ".[dev]"]
        problem = run_pip(python, arguments, Path(f".cache/install-{version}.log"))
        if problem is not None:
            print(f"versions: the packages for Python {version} could not be installed: {problem}", file=sys.stderr)
            return 1
        (environment / "installed").touch()
    path = f"{environment.resolve() / 'bin'}{os.pathsep}{os.environ['PATH']}"
    marks = "not slow and not long and not install and not image"
    command = [str(python), "-m", "pytest", "-q", "-m", marks, "-n", "3", "--dist", "worksteal", "tests/unit"]
    return subprocess.run(command, env={**os.environ, "PATH": path}, check=False).returncode


def main(asked: Sequence[str]) -> int:
    programs = found()
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    wanted = [each.removeprefix("python") for each in asked] or [version for version in programs if version != own]
    absent = [version for version in (wanted if asked else PROMISED) if version not in programs]
    if absent:
        print(f"versions: not installed here, and not tested: Python {', '.join(absent)}", flush=True)
    codes = {version: run(version, programs[version]) for version in wanted if version in programs}
    for version, code in codes.items():
        print(f"versions: Python {version}: {'passed' if code == 0 else f'exit code {code}'}")
    return 1 if any(codes.values()) or (asked and absent) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
