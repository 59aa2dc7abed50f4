"""One measured figure: a name that stays the same between runs, a value, its unit, and the conditions without which it has no meaning. Pure except
for `read` and `write`. The file is a list of `{name, value, unit, conditions}`, with `ratio` and `ratio_to` if something comparable ran in the same
run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table

__all__ = ["Measurement", "in_turns", "merge", "percentile", "read", "table", "write"]


@dataclass(frozen=True)
class Measurement:
    """`ratio` is `value` divided by the figure that `ratio_to` names; for times, below 1 is better; for rates, above 1 is better."""

    name: str
    value: float
    unit: str
    conditions: Mapping[str, Any]
    ratio: float | None = None
    ratio_to: str | None = None

    def __post_init__(self) -> None:
        if not math.isfinite(self.value) or self.value < 0:
            raise ValueError(f"not a figure: name={self.name} value={self.value}")
        if (self.ratio is None) != (self.ratio_to is None):
            raise ValueError(f"a ratio needs what it is a ratio to: name={self.name}")

    def compared_with(self, other: float, what: str) -> Measurement:
        return Measurement(self.name, self.value, self.unit, self.conditions, self.value / other, what)

    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = {"name": self.name, "value": _rounded(self.value), "unit": self.unit, "conditions": dict(self.conditions)}
        if self.ratio is not None:
            found |= {"ratio": _rounded(self.ratio), "ratio_to": self.ratio_to}
        return found


def in_turns(name: str, rounds: Sequence[tuple[float, float]], other: str, conditions: Mapping[str, Any]) -> Measurement:
    """The median of the ratios of rounds, in each of which the platform and something else did the same one after the other."""
    ratios = [mine / theirs for mine, theirs in rounds]
    told = {
        "rounds": len(rounds),
        "ratios": f"{min(ratios):.2f} to {max(ratios):.2f}",
        "of_platform": _rounded(median(mine for mine, _ in rounds)),
        f"of_{other}": _rounded(median(theirs for _, theirs in rounds)),
    }
    return Measurement(name, median(ratios), "ratio", {**conditions, **told})


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of the values do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def merge(old: Iterable[Mapping[str, Any]], new: Iterable[Measurement]) -> list[dict[str, Any]]:
    """The old documents, with the new figures in place of the old ones: `--only` replaces some figures and keeps the others."""
    documents = [measurement.document() for measurement in new]
    renewed = {document["name"] for document in documents}
    return [dict(document) for document in old if document["name"] not in renewed] + documents


def read(path: Path) -> list[dict[str, Any]]:
    """The documents of an earlier run; empty if the file does not exist or has another format."""
    try:
        found = json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return []
    return [document for document in found if isinstance(document, dict) and "name" in document] if isinstance(found, list) else []


def write(path: Path, measurements: Iterable[Measurement]) -> None:
    lines = ",\n".join(json.dumps(document) for document in merge(read(path), measurements))
    path.write_text(f"[\n{lines}\n]\n")


def table(measurements: Iterable[Measurement]) -> Table:
    """The figures as a table. Conditions that all figures share are below it, once."""
    measurements = list(measurements)
    shared = dict(set.intersection(*({*map(_pair, m.conditions.items())} for m in measurements))) if measurements else {}
    told = Table(caption=", ".join(f"{key} {value}" for key, value in sorted(shared.items())), caption_justify="left")
    for header in ("figure", "value", "unit", "ratio", "to", "conditions"):
        told.add_column(header, justify="right" if header in ("value", "ratio") else "left")
    for m in measurements:
        own = ", ".join(f"{key} {value}" for key, value in m.conditions.items() if key not in shared)
        told.add_row(m.name, f"{_rounded(m.value):,}", m.unit, "" if m.ratio is None else f"{m.ratio:.2f}", m.ratio_to or "", own)
    return told


def _pair(item: tuple[str, Any]) -> tuple[str, str]:
    return item[0], str(item[1])


def _rounded(value: float) -> int | float:
    """Three or four digits, because more would overstate the precision."""
    return round(value) if value >= 1000 else float(f"{value:.3g}")
