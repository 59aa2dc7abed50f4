"""Checks what a wheel of the project would pack: only kinds of files that the packages consist of, and no links.

The backend packs all that is in the folders of the packages, and the contents of what a link names. A key, a certificate or a file of variables
that was left there would be distributed. So the build ends with an error that names it. An editable install packs nothing.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

__all__ = ["PackedFiles", "unexpected"]

SUFFIXES = frozenset({".py", ".pyi", ".typed", ".proto", ".html", ".css", ".js", ".svg", ".woff2", ".txt", ".ico", ".png", ".LICENSE"})
IGNORED = frozenset({"__pycache__"})


def unexpected(package: Path) -> list[Path]:
    """Links, and files of other kinds than the packages consist of, sorted."""
    found = []
    for folder, folders, files in os.walk(package):
        here = Path(folder)
        folders[:] = [name for name in folders if name not in IGNORED]
        found += [here / name for name in folders if (here / name).is_symlink()]
        found += [here / name for name in files if (here / name).is_symlink() or not _is_expected(here / name)]
    return sorted(found)


def _is_expected(path: Path) -> bool:
    return path.suffix in SUFFIXES or path.name == "py.typed" or path.suffix == ".pyc"


class PackedFiles(BuildHookInterface):  # type: ignore[type-arg]
    """Named in `pyproject.toml`."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Raises `ValueError` with what a wheel must not contain."""
        if version == "editable":
            return
        for package in self.build_config.packages:
            wrong = unexpected(Path(self.root) / package)
            if wrong:
                names = ", ".join(str(path.relative_to(self.root)) for path in wrong)
                raise ValueError(f"the wheel would pack links or files of unexpected kinds, move them out of the packages: {names}")
