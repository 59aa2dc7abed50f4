"""How many lines something that peers cause may write: some for each key within a window, and some for all keys together. What is left out is
counted, and the next line of its key says how many there were."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

__all__ = ["KEYS_MAX", "WINDOW_S", "LineLimit"]

WINDOW_S: Final = 10.0
KEYS_MAX: Final = 1024
"""Keys that are counted. The one that wrote or tried to longest ago is forgotten first."""


class _Counted:
    __slots__ = ("began_s", "left_out", "lines")

    def __init__(self, now_s: float) -> None:
        self.began_s, self.lines, self.left_out = now_s, 0, 0

    def has_room(self, lines_max: int, now_s: float) -> bool:
        if now_s - self.began_s >= WINDOW_S:
            self.began_s, self.lines = now_s, 0
        return self.lines < lines_max


class LineLimit:
    """`lines_max`: of one key within `WINDOW_S`; `together_max`: of all keys. `now_s`: seconds that only rise."""

    def __init__(self, lines_max: int, together_max: int, now_s: Callable[[], float] = time.monotonic) -> None:
        self._lines_max, self._together_max, self._now_s = lines_max, together_max, now_s
        self._keys: OrderedDict[str | None, _Counted] = OrderedDict()
        self._together = _Counted(now_s())

    def __len__(self) -> int:
        return len(self._keys)

    def count(self, key: str | None) -> int | None:
        """How many lines of the key were left out before this one, which is written; None: leave this one out too."""
        now_s = self._now_s()
        own = self._of(key, now_s)
        if not (own.has_room(self._lines_max, now_s) and self._together.has_room(self._together_max, now_s)):
            own.left_out += 1
            return None
        own.lines += 1
        self._together.lines += 1
        left_out, own.left_out = own.left_out, 0
        return left_out

    def leave_out(self, key: str | None) -> None:
        """A line is left out for another reason than this limit."""
        self._of(key, self._now_s()).left_out += 1

    def _of(self, key: str | None, now_s: float) -> _Counted:
        own = self._keys.get(key)
        if own is None:
            own = self._keys[key] = _Counted(now_s)
            if len(self._keys) > KEYS_MAX:
                self._keys.popitem(last=False)
        self._keys.move_to_end(key)
        return own
