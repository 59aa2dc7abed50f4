"""Policies of topics as texts, as a person or a request writes them. `Policies` says what is wrong with the values. Pure."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["policy_values"]


def policy_values(texts: Mapping[str, str]) -> dict[str, bool | int | str]:
    """`true` and `false` as such, whole numbers as numbers, everything else as it is."""
    found: dict[str, bool | int | str] = {}
    for name, text in texts.items():
        if text in ("true", "false"):
            found[name] = text == "true"
        elif text.isascii() and text.removeprefix("-").isdecimal() and len(text) <= 20:
            found[name] = int(text)
        else:
            found[name] = text
    return found
