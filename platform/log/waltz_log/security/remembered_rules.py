"""The rules of access that a storage node enforced last, in a file of its directory, so that it enforces them after a restart too: also where the
coordinator lost them, or was put back to a state before them.

The workers of a node share the file. Each writes what it follows, and a later revision replaces an earlier one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from waltz_log.errors import InvalidSetting
from waltz_log.loggers import get_logger
from waltz_log.security.rules import ACCESS, CLOSED, AccessRules
from waltz_log.untrusted_files import RULES, read_bytes

__all__ = ["FILE", "RememberedRules"]

log = get_logger(__name__)

FILE: Final = "access-rules.json"


class RememberedRules:
    """Of one process. All calls block."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE

    def load(self) -> AccessRules | None:
        """None: the node never enforced rules. `CLOSED` for a file that cannot be read: there were rules."""
        try:
            return AccessRules.from_bytes(read_bytes(self._path, RULES))
        except FileNotFoundError:
            return None
        except (InvalidSetting, OSError) as error:
            log.error("remembered rules cannot be read, nothing is permitted without rules", file=str(self._path), reason=str(error))
            return CLOSED

    def store(self, rules: AccessRules) -> None:
        """Durable when it returns. A disk that does not accept it is reported: the rules apply, until a restart."""
        new = self._path.with_name(f"{FILE}.{os.getpid()}.new")
        try:
            known = self.load() if self._path.exists() else None
            if known is not None and known is not CLOSED and known.revision > rules.revision:
                return
            new.unlink(missing_ok=True)
            handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with open(handle, "wb") as file:
                file.write(rules.to_bytes())
                file.flush()
                os.fsync(file.fileno())
            new.replace(self._path)
        except OSError as error:
            log.error("rules of access are not remembered", name=ACCESS, file=str(self._path), reason=str(error))
