"""The results of earlier runs: `benchmarks/history/`, named by the time at which each was written."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.measurement import read

__all__ = ["KEPT", "keep", "known_seconds", "previous", "remember_seconds"]

KEPT = 20
"""The number of runs that are kept. The oldest are removed."""

RUNS = "[0-9]*.json"
SECONDS = "seconds.json"
"""The file with the last duration of each kind of run."""


def keep(latest: Path) -> None:
    """Copies the results of the last run, before the next one replaces them. Does nothing if there are none."""
    if not read(latest):
        return
    folder = latest.parent / "history"
    folder.mkdir(exist_ok=True)
    written = datetime.fromtimestamp(latest.stat().st_mtime, UTC)
    shutil.copy2(latest, folder / f"{written:%Y-%m-%dT%H-%M-%S}.json")
    for old in sorted(folder.glob(RUNS))[:-KEPT]:
        old.unlink()


def previous(latest: Path) -> tuple[str, list[dict[str, Any]]]:
    """When the newest of the kept runs was written, and its figures; an empty text where none is kept."""
    kept = sorted((latest.parent / "history").glob(RUNS))
    return (kept[-1].stem, read(kept[-1])) if kept else ("", [])


def known_seconds(latest: Path, what: str) -> float | None:
    """The last duration of this kind of run; None if none has completed here."""
    return _seconds(latest).get(what)


def remember_seconds(latest: Path, what: str, spent_s: float) -> None:
    path = latest.parent / "history" / SECONDS
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(_seconds(latest) | {what: round(spent_s, 1)}, indent=1) + "\n")


def _seconds(latest: Path) -> dict[str, float]:
    try:
        return dict(json.loads((latest.parent / "history" / SECONDS).read_text()))
    except (FileNotFoundError, ValueError):
        return {}
