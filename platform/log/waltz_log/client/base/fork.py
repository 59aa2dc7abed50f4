"""How often this process was forked since it began to count. Connections and threads do not survive a fork; what was made before must not be used."""

from __future__ import annotations

import os

__all__ = ["COUNT", "count"]

COUNT = [0]
"""One number, in a list that hot paths hold on to."""


def count() -> int:
    return COUNT[0]


def _forked() -> None:
    COUNT[0] += 1


os.register_at_fork(after_in_child=_forked)
