"""Completes names of topics for the shell, from the cluster that the line names, or that a variable or a profile does.

A shell waits for the answer while a person types. So the cluster gets `TIMEOUT_S` altogether. If it does not answer in that time, or refuses, there
are no completions and no message.
"""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import Mapping
from contextlib import redirect_stderr
from itertools import pairwise
from typing import Final

from waltz_log.cli.profiles import default_address, has_shape, profile_address
from waltz_log.errors import WaltzError

__all__ = ["TIMEOUT_S", "complete_topics", "line_address"]

TIMEOUT_S: Final = 1.0


def complete_topics(incomplete: str) -> list[str]:
    """The names that begin with `incomplete`, in order; none if the cluster does not answer."""
    try:
        address = line_address(os.environ)
        if address is None:
            return []
        with redirect_stderr(io.StringIO()):  # log lines would appear in the line that is typed
            return [name for name in asyncio.run(_topics(address)) if name.startswith(incomplete)]
    except (WaltzError, OSError):
        return []


def line_address(environment: Mapping[str, str]) -> str | None:
    """The cluster of the line that the shell completes, which it passes in a variable; None if there is none. Raises `InvalidSetting`."""
    line = environment.get("_TYPER_COMPLETE_ARGS") or environment.get("COMP_WORDS") or ""
    words = [os.path.expandvars(word.strip("\"'")) for word in line.split()]
    for word in words:
        if has_shape("cluster", word.removeprefix("--cluster=")):
            return word.removeprefix("--cluster=")
    for option, name in pairwise(words):
        if option == "--profile":
            return profile_address("cluster", name, environment)
    return default_address("cluster", environment)


async def _topics(address: str) -> list[str]:
    from waltz_log.cli.connecting import reached

    async with asyncio.timeout(TIMEOUT_S), reached(address, TIMEOUT_S) as owners:
        return sorted(str(topic.name) for topic in owners.catalogue.topics.values())
