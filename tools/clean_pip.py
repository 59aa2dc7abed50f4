"""Runs pip with the settings that say how packages are reached, and without those of the user that change what is installed or where.

`python -m tools.clean_pip LOG PYTHON ARGUMENTS…` is `PYTHON -m pip ARGUMENTS…`. On a failure it prints pip's own last error. Uses only the standard
library, because it installs everything else.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from waltz_log.child_environment import pip_environment, pip_settings

CAUSES = (
    ("No space left on device", "no space on the disk; free 3 GB"),
    ("NewConnectionError", "no package index answers; check the network, and the index and proxy that pip config list shows"),
    ("NameResolutionError", "no package index answers; check the network, and the index and proxy that pip config list shows"),
    ("CERTIFICATE_VERIFY_FAILED", "the package index shows a certificate that Python does not trust (pip config set global.cert FILE)"),
    ("ProxyError", "the proxy does not connect; check HTTPS_PROXY and pip config list"),
)


def cause(output: str) -> str:
    """Why pip failed, in one sentence: what it means where that is known, and pip's own last error."""
    errors = [line.strip().removeprefix("ERROR: ") for line in output.splitlines() if line.strip().startswith("ERROR: ")]
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    quoted = errors[-1] if errors else lines[-1] if lines else "pip printed nothing"
    known = next((meaning for sign, meaning in CAUSES if sign in output), None)
    return f"pip: {quoted}" if known is None else f"{known} (pip: {quoted})"


def run_pip(python: Path, arguments: Sequence[str], log: Path, environment: Mapping[str, str] = os.environ) -> str | None:
    """Returns why it failed, or None."""
    log.parent.mkdir(parents=True, exist_ok=True)
    listing = [str(python), "-m", "pip", "config", "list"]
    listed = subprocess.run(listing, env=dict(environment), capture_output=True, text=True, errors="replace", check=False)
    with tempfile.TemporaryDirectory(dir=log.parent, prefix="pip-") as temporary, log.open("wb") as output:
        clean = pip_environment(environment, pip_settings(listed.stdout.splitlines()), Path(temporary).resolve())
        done = subprocess.run([str(python), "-m", "pip", *arguments], env=clean, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False)
    return None if done.returncode == 0 else f"{cause(log.read_text(errors='replace'))} (log: {log})"


def configured_index() -> str | None:
    """The index that pip's settings name, or None for pip's own."""
    listing = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(listing, capture_output=True, text=True, errors="replace", check=False)
    return pip_settings(listed.stdout.splitlines()).get("PIP_INDEX_URL")


def main() -> int:
    log, python, *arguments = sys.argv[1:]
    problem = run_pip(Path(python), arguments, Path(log))
    if problem is not None:
        print(f"setup: the packages could not be installed: {problem}", file=sys.stderr)
    return 0 if problem is None else 1


if __name__ == "__main__":
    sys.exit(main())
