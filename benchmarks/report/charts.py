"""Charts as inline SVG. Pure: numbers in, text out. Colors come from the classes of the page, so that light and dark have their own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

__all__ = ["Ratio", "Series", "line_chart", "ratio_chart"]

WIDTH, HEIGHT = 720, 320
LEFT, RIGHT, TOP, BOTTOM = 76, 24, 20, 52
COLORS = 6
"""Classes `color-0` to `color-5` of the page."""

ROW = 26
LABELS = 250
"""The width of the labels in a chart of ratios."""


class Series(NamedTuple):
    """`points`: x and y, both above 0 on an axis that is logarithmic."""

    name: str
    points: Sequence[tuple[float, float]]


class Ratio(NamedTuple):
    """`low` and `high`: the spread over the rounds, equal to `value` where it is not known. `better`: than what it is compared with."""

    label: str
    value: float
    low: float
    high: float
    better: bool


class _Axis:
    """Maps values to positions. Positions begin at `start`, which may be below or above `end`."""

    def __init__(self, values: Sequence[float], start: float, end: float, *, log: bool) -> None:
        self._log = log
        self._start, self._end = start, end
        if log:
            self.low, self.high = 10 ** math.floor(math.log10(min(values))), 10 ** math.ceil(math.log10(max(values)))
            self.high = self.high if self.high > self.low else self.low * 10
            self.ticks = [10**power for power in range(round(math.log10(self.low)), round(math.log10(self.high)) + 1)]
        else:
            step = _step(max(values))
            self.low, self.high = 0.0, step * max(1, math.ceil(max(values) / step))
            self.ticks = [step * number for number in range(round(self.high / step) + 1)]

    def place(self, value: float) -> float:
        share = (math.log(value / self.low) / math.log(self.high / self.low)) if self._log else (value - self.low) / (self.high - self.low)
        return self._start + share * (self._end - self._start)


def _step(highest: float) -> float:
    """A round number that divides the axis into at most five parts."""
    if highest <= 0:
        return 1.0
    rough = highest / 5
    size: float = 10 ** math.floor(math.log10(rough))
    return next(factor * size for factor in (1, 2, 5, 10) if factor * size >= rough * (1 - 1e-9))


def shown(value: float) -> str:
    """Three digits, with k and M for thousands and millions."""
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def line_chart(title: str, series: Sequence[Series], *, x: str, y: str, log_x: bool = True, log_y: bool = False) -> str:
    """Lines with a dot for each measured point. `x`, `y`: what the axes say. Raises `ValueError` without a point."""
    points = [point for each in series for point in each.points]
    if not points:
        raise ValueError(f"a chart without a point: {title}")
    across = _Axis([point[0] for point in points], LEFT, WIDTH - RIGHT, log=log_x)
    up = _Axis([point[1] for point in points], HEIGHT - BOTTOM, TOP, log=log_y)
    parts = [_open(title, WIDTH, HEIGHT)]
    for tick in up.ticks:
        at = up.place(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{at:.1f}" x2="{WIDTH - RIGHT}" y2="{at:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{shown(tick)}</text>')
    for tick in across.ticks:
        parts.append(f'<text class="tick" x="{across.place(tick):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{shown(tick)}</text>')
    parts.append(f'<text class="axis" x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x)}</text>')
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(f'<text class="axis" transform="translate(14 {middle:.0f}) rotate(-90)" text-anchor="middle">{escape(y)}</text>')
    for number, each in enumerate(series):
        placed = [(across.place(at), up.place(value)) for at, value in sorted(each.points)]
        color = f"color-{number % COLORS}"
        line = " ".join(f"{at:.1f},{value:.1f}" for at, value in placed)
        parts.append(f'<polyline class="line {color}" points="{line}"/>')
        for (at, value), (given_x, given_y) in zip(placed, sorted(each.points), strict=True):
            title = escape(f"{each.name}: {shown(given_y)} at {shown(given_x)}")
            parts.append(f'<circle class="dot {color}" cx="{at:.1f}" cy="{value:.1f}" r="4"><title>{title}</title></circle>')
    return "".join([*parts, "</svg>", _legend([each.name for each in series])])


def ratio_chart(title: str, rows: Sequence[Ratio]) -> str:
    """A dot with its spread for each ratio, on an axis whose middle is 1. Raises `ValueError` without a row."""
    if not rows:
        raise ValueError(f"a chart without a row: {title}")
    reach = max(2.0, *(max(each.high, 1 / each.low) for each in rows)) * 1.1
    height = TOP + ROW * len(rows) + 36
    begin, end = LABELS + 16, WIDTH - 60

    def place(value: float) -> float:
        return begin + (math.log(value / (1 / reach)) / math.log(reach * reach)) * (end - begin)

    parts = [_open(title, WIDTH, height)]
    ticks = [2.0**power for power in range(-8, 9) if 1 / reach <= 2.0**power <= reach]
    for tick in ticks if len(ticks) <= 9 else ticks[::2]:
        kind = "one" if tick == 1 else "grid"
        parts.append(f'<line class="{kind}" x1="{place(tick):.1f}" y1="{TOP}" x2="{place(tick):.1f}" y2="{height - 34}"/>')
        parts.append(f'<text class="tick" x="{place(tick):.1f}" y="{height - 16}" text-anchor="middle">{shown(tick)}</text>')
    for number, each in enumerate(rows):
        at = TOP + ROW * number + ROW / 2
        kind = "better" if each.better else "worse"
        parts.append(f'<text class="label" x="{LABELS}" y="{at + 4:.1f}" text-anchor="end">{escape(each.label)}</text>')
        parts.append(f'<line class="spread {kind}" x1="{place(each.low):.1f}" y1="{at:.1f}" x2="{place(each.high):.1f}" y2="{at:.1f}"/>')
        title = escape(f"{each.label}: {each.value:.2f} ({each.low:.2f} to {each.high:.2f})")
        parts.append(f'<circle class="dot {kind}" cx="{place(each.value):.1f}" cy="{at:.1f}" r="5"><title>{title}</title></circle>')
        parts.append(f'<text class="tick" x="{WIDTH - 8}" y="{at + 4:.1f}" text-anchor="end">{each.value:.2f}</text>')
    return "".join([*parts, "</svg>"])


def _open(title: str, width: int, height: int) -> str:
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}"><title>{escape(title)}</title>'


def _legend(names: Sequence[str]) -> str:
    entries = "".join(f'<li><span class="swatch color-{number % COLORS}"></span>{escape(name)}</li>' for number, name in enumerate(names))
    return f'<ul class="legend">{entries}</ul>'
