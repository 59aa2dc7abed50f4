"""Notices each call of Delta in the JVM, for tests of what must do without its jars."""

from __future__ import annotations

import re
from typing import Any

import pytest

__all__ = ["refuse_delta"]

DELTA = re.compile(r"^(z:)?(io\.delta|org\.apache\.spark\.sql\.delta)\b|^sdelta$", re.MULTILINE)
"""In a call of the JVM: Delta's classes, and its name as a format. A line that begins with `s` is a text, such as a setting."""


def refuse_delta(spark: Any, patched: pytest.MonkeyPatch) -> None:
    """From here on each call fails."""
    client = type(spark._jvm._gateway_client)
    send = client.send_command

    def checked(self: Any, command: str, *given: Any, **named: Any) -> Any:
        assert not DELTA.search(command), f"a call of Delta in the JVM: {command!r}"
        return send(self, command, *given, **named)

    patched.setattr(client, "send_command", checked)
