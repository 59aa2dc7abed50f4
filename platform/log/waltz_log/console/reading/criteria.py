"""What a person searches for, and which records of a block match it. Pure.

A search for text first compares bytes of the whole block, which costs a fraction of decoding it. Text also matches in the form in which JSON
escapes it.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from waltz_log.core.formats.columns import headers_array, offsets_array
from waltz_log.core.formats.envelope import key_of
from waltz_log.core.formats.record_layout import HEADER_BYTES

__all__ = ["Criteria"]


@dataclass(frozen=True)
class Criteria:
    """A record must match each field that is not None. `key`: in keyed topics; `text`: anywhere in the data."""

    text: str | None = None
    key: str | None = None
    header: int | None = None
    client_id: int | None = None

    def __bool__(self) -> bool:
        return any(each is not None for each in (self.text, self.key, self.header, self.client_id))

    @property
    def reads_payloads(self) -> bool:
        """Whether the answer reveals something about payloads."""
        return self.text is not None or self.key is not None

    @cached_property
    def _needles(self) -> tuple[bytes, ...]:
        if self.text is None:
            return ()
        plain = self.text.encode()
        escaped = json.dumps(self.text)[1:-1].encode()
        return (plain,) if escaped == plain else (plain, escaped)

    def matches(self, lengths: bytes, records: bytes) -> list[int]:
        """The indexes of matching records in the block, in increasing order."""
        if not records:
            return []
        offsets = offsets_array(lengths)
        chosen = list(range(len(offsets) - 1))
        if self.header is not None or self.client_id is not None:
            headers = headers_array(records, lengths)
            mask = np.ones(len(chosen), dtype=bool)
            if self.header is not None:
                mask &= headers["header"] == self.header
            if self.client_id is not None:
                mask &= headers["client_id"] == self.client_id
            chosen = np.flatnonzero(mask).tolist()
        ends = offsets.tolist()
        if self.text is not None:
            chosen = _only_in(chosen, _containing(records, ends, self._needles))
        if self.key is not None:
            key = self.key.encode()
            chosen = [at for at in _only_in(chosen, _containing(records, ends, (key,))) if key_of(_data(records, ends, at)) == key]
        return chosen


def _data(records: bytes, ends: Sequence[int], at: int) -> bytes:
    return records[ends[at] + HEADER_BYTES : ends[at + 1] - 4]


def _containing(records: bytes, ends: Sequence[int], needles: tuple[bytes, ...]) -> set[int]:
    """The records whose data contains one of the needles."""
    found: set[int] = set()
    for needle in needles:
        position = records.find(needle)
        while position >= 0:
            at = bisect_right(ends, position) - 1
            if position >= ends[at] + HEADER_BYTES and position + len(needle) <= ends[at + 1] - 4:
                found.add(at)
                position = records.find(needle, max(position + 1, ends[at + 1]))
            else:
                position = records.find(needle, position + 1)
    return found


def _only_in(chosen: list[int], found: set[int]) -> list[int]:
    return [at for at in chosen if at in found]
