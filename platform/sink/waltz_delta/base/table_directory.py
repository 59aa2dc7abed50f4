"""What may be in the directory of a table that does not exist yet. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from waltz_delta.errors import NotADeltaTable

__all__ = ["LOG", "UNFINISHED", "refuse_other_content"]

LOG: Final = "_delta_log"
UNFINISHED: Final = re.compile(r"\d{20}\.json#\d+")
"""A commit of `deltalake` in a local directory before it has its name, which a writer leaves that is killed at that moment."""


def refuse_other_content(path: str, inside: Collection[str], logged: Collection[str]) -> None:
    """Raises `NotADeltaTable` if the directory holds anything but the remains of a first batch that died. `inside`: the names in the directory;
    `logged`: those in its log."""
    if inside and LOG not in inside:
        raise NotADeltaTable(path=path, reason=f"the directory holds {min(inside)} and no {LOG}")
    # Commits and checkpoints are numbered; folders that Delta makes before the first are not.
    if any(name[0].isdigit() and not (UNFINISHED.fullmatch(name) and int(name[:20]) == 0) for name in logged):
        raise NotADeltaTable(path=path, reason=f"its {LOG} has files and no commit that can be read")
