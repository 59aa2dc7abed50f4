"""The order of intents of one key: which of them may be sent now.

Data follows data at once. A call waits until everything before it of its key is decided, and everything after it waits for the call. Intents without
a key wait for nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from waltz_log.outbox.ledger import Entry

__all__ = ["KeyOrder"]


class _Key:
    """The intents of one key in order. The first `released` of them were passed on."""

    __slots__ = ("entries", "released")

    def __init__(self) -> None:
        self.entries: deque[Entry] = deque()
        self.released = 0


class KeyOrder:
    """`release` is called with each intent once, when it may be sent."""

    def __init__(self, release: Callable[[Entry], None]) -> None:
        self._release = release
        self._keys: dict[str, _Key] = {}

    def add(self, entry: Entry) -> None:
        """In the order of submission."""
        if not entry.intent.key:
            self._release(entry)
            return
        key = self._keys.setdefault(entry.intent.key, _Key())
        key.entries.append(entry)
        self._advance(key)

    def _advance(self, key: _Key) -> None:
        while key.released < len(key.entries):
            entry = key.entries[key.released]
            if key.released and (entry.intent.handler or key.entries[0].intent.handler):
                return
            key.released += 1
            self._release(entry)

    def finished(self, entry: Entry) -> None:
        """The intent is decided: the next ones of its key may be sent."""
        key = self._keys.get(entry.intent.key) if entry.intent.key else None
        if key is None or entry not in key.entries:
            return
        if key.entries.index(entry) < key.released:
            key.released -= 1
        key.entries.remove(entry)
        if key.entries:
            self._advance(key)
        else:
            del self._keys[entry.intent.key]
