"""Times as commands accept them."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from waltz_log.errors import InvalidSetting

__all__ = ["parse_time"]


def parse_time(option: str, text: str, now_ms: int) -> int:
    """Milliseconds since 1970 of a time in ISO 8601 (UTC without an offset), of such a number itself, or of `90s`, `15m`, `2h` or `1d` ago. Raises
    `InvalidSetting`."""
    ago = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if ago is not None:
        return now_ms - round(float(ago[1]) * {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}[ago[2]])
    if re.fullmatch(r"\d{9,}", text):
        return int(text)
    try:
        found = datetime.fromisoformat(text)
        return round((found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        wanted = "must be a time such as 2026-11-25T14:30:00, or a duration ago such as 15m"
        raise InvalidSetting(name=option, reason=f"{wanted}, got {text!r}", nearest=None) from None
