"""Bugs to plant in how one client resolves outcomes for another (as in `planted.py`)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from verification.mutants.planting import bug, change
from waltz_log.client.append import producer, resolve

__all__: list[str] = []


@bug
def living_client_fenced_for_good() -> None:
    """A client whose outcome another one resolved believes that another process acts as itself, and ends."""
    change(producer, "is_resolving", lambda mount_sequence: False)


@bug
def resolved_without_fencing_the_other() -> None:
    """What another client has in flight is reported as not in the log, and its connection goes on."""

    @asynccontextmanager
    async def mounted(*_: Any) -> AsyncIterator[None]:
        yield

    async def ask(*given: Any) -> tuple[bool, resolve.Ranges]:
        _, found = await original(*given)
        return True, found

    change(resolve, "_mounted", mounted)
    original: Any = change(resolve, "_ask", ask)
