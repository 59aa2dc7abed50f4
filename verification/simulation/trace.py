"""The trace of a run, line by line, and a digest of all lines: two runs of one seed are the same if their digests are equal. Includes the log lines
of the simulated processes, with the process that wrote them.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any

import structlog

from verification.log_settings import kept_log_settings
from waltz_log.testing.virtual_time import current_process, world_time_s

__all__ = ["Trace"]

LINES_MAX = 5000
"""The number of lines that are kept to be read. The digest covers all lines."""


class Trace:
    """`show` is given each line at once. `logged` is given every log line's event and facts."""

    def __init__(self, show: Callable[[str], None] | None = None) -> None:
        self.lines: deque[str] = deque(maxlen=LINES_MAX)
        self.logged: Callable[[str, MutableMapping[str, Any]], None] = lambda event, facts: None
        self._show = show
        self._digest = blake2b(digest_size=16)

    def add(self, who: str, what: str) -> None:
        line = f"{world_time_s():9.4f} {who:<12} {what}"
        self._digest.update(line.encode())
        self.lines.append(line)
        if self._show is not None:
            self._show(line)

    def digest(self) -> str:
        return self._digest.hexdigest()

    def tail(self, count: int) -> str:
        return "\n".join(list(self.lines)[-count:])

    def _process(self, _logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        reported = event.pop("event", "")
        self.logged(reported, event)
        process = current_process()
        facts = " ".join(f"{name}={value}" for name, value in event.items() if name != "exc_info")
        if event.get("exc_info"):
            facts += f" {event['exc_info']!r}"
        self.add("-" if process is None else process.name, f"{reported} {facts}".rstrip())
        raise structlog.DropEvent

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Log lines go only to this trace."""
        with kept_log_settings():
            structlog.configure(processors=[self._process], wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
            yield
