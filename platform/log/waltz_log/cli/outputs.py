"""How commands tell what they found: a table for people, JSON for programs."""

from __future__ import annotations

from typing import Annotated

import typer

from waltz_log.errors import InvalidSetting

__all__ = ["Output", "checked_output"]

Output = Annotated[str, typer.Option("--output", "-o", help="table or json.")]


def checked_output(chosen: str) -> str:
    """Raises `InvalidSetting` where it is neither."""
    if chosen not in ("table", "json"):
        near = InvalidSetting.unknown(chosen, ("table", "json")).nearest
        raise InvalidSetting(name="--output", reason=f"is table or json, not {chosen!r}", nearest=near)
    return chosen
