"""Every kind of file that a storage node writes, and which of its bytes no reader checks. A test compares the list with the files that nodes
write."""

from __future__ import annotations

import re
from typing import Final

from verification.crashes.storage_corruption import PADDING
from waltz_log.core.formats.control_format import CONTROL_FILE, FENCE_FILE
from waltz_log.core.formats.segment_format import DATA, INDEX, TIMES
from waltz_log.storage.control.client_ids import CLIENT_IDS_FILE

__all__ = ["FILE_KINDS", "is_padding", "kind_of"]

_VIEW: Final = r"(?!\d+/)[^/]+/[^/]+/\d+/"

FILE_KINDS: Final[dict[str, re.Pattern[str]]] = {
    "control": re.compile(re.escape(CONTROL_FILE)),
    "fence": re.compile(re.escape(FENCE_FILE)),
    "client ids": re.compile(re.escape(CLIENT_IDS_FILE)),
    DATA: re.compile(rf"\d+/\d+\.{DATA}"),
    INDEX: re.compile(rf"\d+/\d+\.{INDEX}"),
    TIMES: re.compile(rf"\d+/\d+\.{TIMES}"),
    "unsynced": re.compile(r"\d+/unsynced"),
    "begins": re.compile(r"\d+/begins"),
    "view metadata": re.compile(rf"{_VIEW}metadata"),
    "view data": re.compile(rf"{_VIEW}\d+\.wal"),
    "view index": re.compile(rf"{_VIEW}\d+\.wal\.index"),
}

_TEMPORARY: Final = re.compile(r"(\.copy)?\.new$|(?<=\.wal|ndex)\.\d+$")
"""The suffix of a file until it is complete and renamed. Leftovers of a crash are removed."""


def kind_of(path: str) -> str | None:
    """None for a file of no known kind."""
    whole = _TEMPORARY.sub("", path)
    return next((kind for kind, pattern in FILE_KINDS.items() if pattern.fullmatch(whole)), None)


def is_padding(kind: str, offset: int) -> bool:
    """Whether no reader checks the byte. Of `unsynced`, only the name has a meaning."""
    return kind == "unsynced" or (kind in PADDING and PADDING[kind](offset))
