"""The page: what was measured, with charts where they help, compared with the previous run. Pure. One file that loads nothing from other hosts. Every
figure of a chart is also in a table, so that no information is in color or shape alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from benchmarks.report.charts import Ratio, Series, line_chart, ratio_chart, shown
from benchmarks.report.comparison import Change, changes, lower_is_better
from benchmarks.report.style import STYLE

__all__ = ["page"]

Document = Mapping[str, Any]
SPREAD = re.compile(r"([\d.]+) to ([\d.]+)")
COMMON = ("cores", "python", "replicas", "fsync", "bytes", "quick")
"""Conditions that the page shows once if all figures share them."""


def page(documents: Sequence[Document], before: Sequence[Document] = (), *, measured: str = "", before_at: str = "") -> str:
    """`before`: the documents of the run before, which was written `before_at`."""
    parts = [_head(documents, measured)]
    parts += [_section(heading, text, body) for heading, text, body in (_throughput(documents), _latency(documents), _peers(documents)) if body]
    if before_at:
        parts.append(_compared(changes(before, documents), before_at))
    parts.append(_section("All figures", "", _table(documents)))
    return "".join([*parts, "</main></body></html>\n"])


def _head(documents: Sequence[Document], measured: str) -> str:
    shared = {name: {str(document["conditions"].get(name)) for document in documents} - {"None"} for name in COMMON}
    common = ", ".join(f"{name} {next(iter(values))}" for name, values in shared.items() if len(values) == 1)
    quick = any(document["conditions"].get("quick") for document in documents)
    warning = '<p class="warning">A quick run: it shows that everything runs. Its figures mean nothing.</p>' if quick else ""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>Benchmarks</title><style>{STYLE}</style></head><body><main><h1>Benchmarks</h1>"
        f"<p>{escape(measured)}{'. ' if measured and common else ''}{escape(common)}.</p>{warning}"
    )


def _section(heading: str, text: str, body: str) -> str:
    return f"<section><h2>{escape(heading)}</h2>{f'<p>{escape(text)}</p>' if text else ''}{body}</section>"


# ---- charts --------------------------------------------------------------------------------------------------------------------------------------


def _throughput(documents: Iterable[Document]) -> tuple[str, str, str]:
    """Rates of one client by the number of its appends in flight."""
    points = {}
    for document in documents:
        conditions = document["conditions"]
        if document["name"].startswith("append.") and document["unit"] == "txn/s" and conditions.get("partitions") == 1 and "in_flight" in conditions:
            points[conditions["in_flight"]] = document["value"]
    if not points:
        return "", "", ""
    series = [Series("append_nowait, one partition", sorted(points.items()))]
    chart = line_chart("Throughput over appends in flight", series, x="in flight", y="transactions per second")
    text = "One client, one partition, a write lock on each transaction. A block costs a fixed price, which appends in flight share."
    return "Throughput over appends in flight", text, chart + _points("in flight", "txn/s", sorted(points.items()))


def _latency(documents: Iterable[Document]) -> tuple[str, str, str]:
    """The share of appends that took longer than a given time. The tail is at the right, where it is easy to read."""
    series = []
    for document in documents:
        known = document["conditions"].get("percentiles_ms")
        if document["name"].startswith("append.") and isinstance(known, Mapping):
            points = [(1 / (1 - float(share)), value) for share, value in known.items() if float(share) < 1 and value > 0]
            series.append(Series(_load_of(document), points))
    if not series:
        return "", "", ""
    chart = line_chart("Latency distribution", series, x="one of so many appends waits longer", y="milliseconds", log_y=True)
    text = "At a rate, a latency counts from the moment a transaction is due, sent or not. 2 on the axis is the median, 100 the 99th percentile."
    rows = "".join(f"<tr><th>{escape(each.name)}</th>{''.join(f'<td>{shown(value)}</td>' for _, value in each.points)}</tr>" for each in series)
    heads = "".join(f"<th>p{100 * (1 - 1 / at):.4g}</th>" for at, _ in series[0].points)
    return "Latency distribution", text, chart + f"<details><summary>Milliseconds</summary><table><tr><th></th>{heads}</tr>{rows}</table></details>"


def _load_of(document: Document) -> str:
    rate = document["conditions"].get("offered_per_s")
    return f"{rate:,} per second" if rate else f"{document['conditions'].get('in_flight', 1):,} in flight"


def _peers(documents: Iterable[Document]) -> tuple[str, str, str]:
    """Ratios to what ran in turns in the same run."""
    rows = []
    table = ""
    for document in documents:
        ratio, unit = document.get("ratio"), document["unit"]
        if unit == "ratio":
            ratio = document["value"]
        if not ratio:
            continue
        lower = lower_is_better(document)
        spread = SPREAD.search(str(document["conditions"].get("ratios", "")))
        low, high = (float(spread[1]), float(spread[2])) if spread else (ratio, ratio)
        if not low:
            low = ratio
        rows.append(Ratio(document["name"], ratio, min(low, ratio), max(high, ratio), ratio <= 1 if lower else ratio >= 1))
        table += f"<tr><th>{escape(document['name'])}</th><td>{ratio:.2f}</td><td>{'lower' if lower else 'higher'} is better</td>"
        table += f'<td class="text">{escape(str(document.get("ratio_to", "its peer, in turns")))}</td></tr>'
    if not rows:
        return "", "", ""
    chart = ratio_chart("Ratios to what ran beside the platform", rows)
    text = "The platform's value divided by that of what ran in the same run. The line is the spread over the rounds."
    return "Beside peers and floors", text, chart + f"<details><summary>To what</summary><table>{table}</table></details>"


def _points(x: str, y: str, points: Sequence[tuple[float, float]]) -> str:
    rows = "".join(f"<tr><td>{at:,}</td><td>{value:,}</td></tr>" for at, value in points)
    return f"<details><summary>Numbers</summary><table><tr><th>{escape(x)}</th><th>{escape(y)}</th></tr>{rows}</table></details>"


# ---- tables --------------------------------------------------------------------------------------------------------------------------------------


def _compared(found: Sequence[Change], before_at: str) -> str:
    heading = f"Compared with the run of {before_at}"
    if not found:
        return _section(heading, "No figure of that run was measured again.", "")
    counts = {verdict: sum(change.verdict == verdict for change in found) for verdict in ("better", "worse", "same")}
    text = f"{counts['better']} figures are better, {counts['worse']} worse, and {counts['same']} differ by less than runs of a shared machine do."
    rows = "".join(
        f'<tr class="{change.verdict}"><th>{escape(change.name)}</th><td>{change.before:,}</td><td>{change.after:,}</td>'
        f"<td>{escape(change.unit)}</td><td>{change.factor:.2f}×</td><td>{change.verdict}</td></tr>"
        for change in found
    )
    head = "<tr><th>figure</th><th>before</th><th>now</th><th>unit</th><th>better by</th><th></th></tr>"
    return _section(heading, text, f"<table>{head}{rows}</table>")


def _table(documents: Sequence[Document]) -> str:
    rows = "".join(
        f"<tr><th>{escape(document['name'])}</th><td>{document['value']:,}</td><td>{escape(document['unit'])}</td>"
        f'<td class="text">{escape(_conditions(document["conditions"]))}</td></tr>'
        for document in documents
    )
    return f"<table><tr><th>figure</th><th>value</th><th>unit</th><th>conditions</th></tr>{rows}</table>"


def _conditions(conditions: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in conditions.items() if name not in COMMON and not isinstance(value, Mapping))
