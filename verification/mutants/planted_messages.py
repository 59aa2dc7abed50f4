"""Bugs to plant in what is made of messages that changed on their way (as in `planted.py`)."""

from __future__ import annotations

from verification.mutants.planting import bug, change
from waltz_log.client.feed import decode_feed
from waltz_log.server.ordering import sequencer
from waltz_log.storage.replica import partition_store

__all__: list[str] = []


@bug
def replicated_records_not_verified() -> None:
    """A storage node writes what it received."""
    change(partition_store, "verify_block", lambda *_, **__: None)


@bug
def appended_records_not_verified() -> None:
    """An owner orders what it received."""
    change(sequencer, "verify_records", lambda *_, **__: None)


class _Equal:
    """Equal to every checksum."""

    def __ne__(self, other: object) -> bool:
        return False


@bug
def fed_records_not_verified() -> None:
    """A client hands out what it received."""
    change(decode_feed, "crc32", lambda *_: _Equal())
