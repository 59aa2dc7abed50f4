"""The last release as it was: built from the repository's history, and run beside this version."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

from tools.dist import build_wheel

ROOT = Path(__file__).resolve().parents[3]


class Release:
    """`version` and the `commit` that described it in the changelog. `build` unpacks its wheel; the packages it needs are this environment's."""

    def __init__(self) -> None:
        """Raises `RuntimeError` if the history is not here."""
        if _git("rev-parse", "--is-shallow-repository").strip() == "true":
            raise RuntimeError("the clone has no history, from which the last release is built: git fetch --unshallow")
        versions = re.findall(r"^## (\d\S*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
        self.version = versions[0]
        self.commit = _git("log", "--reverse", "--format=%H", f"-S## {self.version}\n", "--", "CHANGELOG.md").split()[0]

    def build(self, folder: Path) -> Path:
        """Where its modules can be imported from."""
        archive = subprocess.run(["git", "archive", self.commit], cwd=ROOT, capture_output=True, check=True, timeout=120).stdout
        (folder / "source").mkdir()
        subprocess.run(["tar", "-x", "-C", str(folder / "source")], input=archive, check=True, timeout=120)
        wheel = build_wheel(folder / "source", folder)
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(folder / "modules")
        return folder / "modules"


def python(modules: Path | None) -> Sequence[str]:
    """The interpreter with the modules of a release, or with those of this version."""
    return ("/usr/bin/env", *([] if modules is None else [f"PYTHONPATH={modules}"]), sys.executable, "-P")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True, timeout=120).stdout
