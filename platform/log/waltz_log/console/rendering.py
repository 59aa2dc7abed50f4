"""Templates of the console, and how values are written in them. Everything is escaped; no filter returns markup."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from jinja2 import ChoiceLoader, Environment, FileSystemLoader, StrictUndefined

from waltz_log.console.payloads import preview, visible

__all__ = ["STATIC", "make_environment"]

HERE = Path(__file__).parent
STATIC = HERE / "static"


def make_environment(extension_templates: Sequence[Path] = ()) -> Environment:
    """`extension_templates`: folders."""
    loaders = [FileSystemLoader(folder) for folder in (HERE / "templates", *extension_templates)]
    environment = Environment(loader=ChoiceLoader(loaders), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(
        number=number,
        rate=rate,
        time=time,
        clock=clock,
        size=size,
        duration=duration,
        preview=preview,
        visible=visible,
        polylines=polylines,
    )
    return environment


def number(value: int | None) -> str:
    """`12,345`; a dash for None."""
    return "–" if value is None else f"{value:,}"


def rate(value: float | None) -> str:
    """Per second: `12,345`, `3.4`."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


def time(time_ms: int | None) -> str:
    """`2026-11-25 00:12:03.123`, UTC."""
    return "–" if time_ms is None else _date(time_ms, "%Y-%m-%d %H:%M:%S") + f".{time_ms % 1000:03d}"


def clock(time_ms: int | None) -> str:
    """`00:12:03.123`, UTC."""
    return "–" if time_ms is None else _date(time_ms, "%H:%M:%S") + f".{time_ms % 1000:03d}"


def _date(time_ms: int, form: str) -> str:
    try:
        return datetime.fromtimestamp(time_ms // 1000, UTC).strftime(form)
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} ms"


def size(value: int | None) -> str:
    """`1.2 MB`"""
    if value is None:
        return "–"
    if value < 1000:
        return f"{value} B"
    amount, units = value / 1000, ["kB", "MB", "GB", "TB", "PB"]
    while amount >= 1000 and len(units) > 1:
        amount /= 1000
        del units[0]
    return f"{amount:.1f} {units[0]}" if amount < 100 else f"{amount:.0f} {units[0]}"


def duration(seconds: float | None) -> str:
    """`340 ms`, `12 s`, `5 min`, `3 h`, `2 d`"""
    if seconds is None:
        return "–"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for limit, unit, name in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.1f} {name}" if seconds / unit < 10 and unit == 1 else f"{seconds / unit:.0f} {name}"
    return f"{seconds / 86_400:.0f} d"


def polylines(values: Sequence[float | None], width: int = 96, height: int = 22) -> list[str]:
    """The attributes `points` of SVG polylines, which draw a sparkline. None is a gap, and a value between two gaps is a dot."""
    if len(values) < 2:
        return []
    top = max((value for value in values if value is not None), default=0.0) or 1.0
    step = width / (len(values) - 1)
    lines: list[list[str]] = [[]]
    for at, value in enumerate(values):
        if value is None:
            lines.append([])
        else:
            lines[-1].append(f"{at * step:.1f},{height - 1 - value / top * (height - 2):.1f}")
    return [" ".join(line if len(line) > 1 else line * 2) for line in lines if line]
