"""What is kept of each principal that was denied, beside the files of the audit log: how often, since when, and its first and last calls.

The folder `FILE.denied` holds one small JSON file for each principal, up to `PRINCIPALS_MAX` of them. No denial of another principal changes or
removes it, and it outlives the process, so a flood cannot erase it. The denials of further principals are counted together, in one file of their own,
because a stranger may have certificates with many names. A principal that was not denied for `KEPT_DAYS` makes room for a new one.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final  # Any: JSON

from waltz_log.loggers import get_logger

__all__ = ["CALLS_KEPT", "KEPT_DAYS", "PRINCIPALS_MAX", "DeniedPrincipals"]

log = get_logger(__name__)

PRINCIPALS_MAX: Final = 1024
KEPT_DAYS: Final = 90
CALLS_KEPT: Final = 10
"""The first calls of a principal, and as many of its last."""
PAUSE_S: Final = 10.0
"""Between two writes of one file, after the first calls: a flood costs a write in so many seconds."""
SEARCH_PAUSE_S: Final = 3600.0
"""Before entries are searched again for one that is old enough to make room."""
FILE_BYTES_MAX: Final = 256 * 1024
"""A file in the folder that is larger was not written by this module."""

OTHERS: Final = "others"
UNVERIFIED: Final = "unverified"
"""Without TLS, where nothing proves a name."""
LEFT: Final = "budget.json"


class DeniedPrincipals:
    """The folder of one process. `now_s`: of the clock on the wall. Raises `OSError` if the folder cannot be made. `left`: bytes of the
    budget of the files (`denial_limit`) that the process before left, with what it has regained since."""

    def __init__(self, folder: Path, now_s: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._now_s = now_s
        self._kept: dict[str, dict[str, Any]] = {}
        """By the name of its file."""
        self._due: dict[str, float] = {}
        """When a changed file is written, the earliest first."""
        self._full_until_s = 0.0
        """No entry is old enough to make room before."""
        folder.mkdir(mode=0o700, exist_ok=True)
        for path in sorted(folder.glob("*.json"))[: PRINCIPALS_MAX + 2]:
            found = _read(path)
            if path.name != LEFT and found is not None and _is_entry(found):
                self._kept[path.stem] = found

    def add(self, principal: str | None, call: Mapping[str, str | int]) -> None:
        """`principal` None: unverified. The texts of `call` are cut already."""
        now_s = self._now_s()
        name = self._name_of(principal, now_s)
        time_text = _text(now_s)
        kept = self._kept.get(name)
        if kept is None:
            shown = {} if name in (OTHERS, UNVERIFIED) else {"principal": principal}
            kept = self._kept[name] = {**shown, "count": 0, "first": time_text, "last": time_text, "first_calls": [], "last_calls": []}
        kept["count"] += 1
        kept["last"] = time_text
        entry = {"time": time_text, **({"principal": principal} if name == OTHERS else {}), **call}
        first = len(kept["first_calls"]) < CALLS_KEPT
        if first:
            kept["first_calls"].append(entry)
        else:
            kept["last_calls"].append(entry)
            del kept["last_calls"][:-CALLS_KEPT]
        if first:
            self._write(name)
        else:
            self._due.setdefault(name, now_s + PAUSE_S)
        while self._due and (earliest := next(iter(self._due.items())))[1] <= now_s:
            self._write(earliest[0])

    def _name_of(self, principal: str | None, now_s: float) -> str:
        if principal is None:
            return UNVERIFIED
        name = hashlib.sha256(principal.encode("utf-8", "replace")).hexdigest()[:32]
        if name in self._kept or len(self._kept) - (OTHERS in self._kept) - (UNVERIFIED in self._kept) < PRINCIPALS_MAX:
            return name
        if now_s < self._full_until_s:
            return OTHERS
        oldest = min(self._kept.keys() - {OTHERS, UNVERIFIED}, key=lambda each: str(self._kept[each]["last"]))
        if str(self._kept[oldest]["last"]) >= _text(now_s - KEPT_DAYS * 24 * 3600):
            self._full_until_s = now_s + SEARCH_PAUSE_S
            return OTHERS
        del self._kept[oldest]
        self._due.pop(oldest, None)
        (self._folder / f"{oldest}.json").unlink(missing_ok=True)
        return name

    def _write(self, name: str) -> None:
        self._due.pop(name, None)
        self._replace(f"{name}.json", self._kept[name])

    def _replace(self, name: str, value: object) -> None:
        """A file that cannot be written, as on a full disk, is reported and does not end the call that it is about."""
        path, new = self._folder / name, self._folder / f"{name}.new"
        try:
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "w", encoding="ascii") as file:
                json.dump(value, file, indent=1)
            new.replace(path)
        except OSError as error:
            log.warning("denied principal not written", file=str(path), reason=error.strerror)

    def left(self) -> tuple[float, float] | None:
        """Bytes that the process before left of its budget, and how many seconds ago; None: there was none."""
        found = _read(self._folder / LEFT)
        try:
            return None if found is None else (float(found["bytes"]), max(0.0, self._now_s() - float(found["time"])))
        except (KeyError, TypeError, ValueError):
            return None

    def keep_left(self, count: float) -> None:
        self._replace(LEFT, {"bytes": count, "time": self._now_s()})

    def close(self) -> None:
        """Writes what is due."""
        for name in list(self._due):
            self._write(name)


def _text(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).isoformat(timespec="milliseconds")


def _read(path: Path) -> dict[str, Any] | None:
    """None: the file is missing, or not one of this module, such as a link, which is reported."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            found = json.loads(file.read(FILE_BYTES_MAX + 1)[:FILE_BYTES_MAX])
        if isinstance(found, dict):
            return found
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError):
        pass  # reported below
    log.warning("file of a denied principal ignored", file=str(path))
    return None


def _is_entry(found: Mapping[str, Any]) -> bool:
    return (
        isinstance(found.get("count"), int)
        and all(isinstance(found.get(each), str) for each in ("first", "last"))
        and all(isinstance(found.get(each), list) for each in ("first_calls", "last_calls"))
    )
