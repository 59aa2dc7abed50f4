"""Compares a run with the previous one: which figures were measured again, and whether they improved. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Change", "changes", "lower_is_better"]

LOWER_UNITS = frozenset({"ms", "s", "us", "ns", "us/txn", "B/txn", "MiB", "executions", "ratio of time"})
"""Units for which lower is better. For rates, higher is better."""

NOISE = 0.15
"""On shared machines, a figure varies by this factor from run to run."""

Document = Mapping[str, Any]


@dataclass(frozen=True)
class Change:
    """`factor`: how many times better than before; below 1, worse."""

    name: str
    unit: str
    before: float
    after: float
    factor: float

    @property
    def verdict(self) -> str:
        if self.factor > 1 + NOISE:
            return "better"
        return "worse" if self.factor < 1 / (1 + NOISE) else "same"


def lower_is_better(document: Document) -> bool:
    """Whether lower is better, by the unit and the name of a figure: a share of time or of the processor is a cost, too."""
    name = str(document["name"])
    return document["unit"] in LOWER_UNITS or name.endswith(("_ms", "_s", "_executions", "_cost")) or name.startswith("costs.")


def changes(before: Iterable[Document], after: Iterable[Document]) -> Sequence[Change]:
    """The figures that both runs have under the same name and unit and that were measured again, largest change first."""
    known = {document["name"]: document for document in before}
    found = []
    for document in after:
        old = known.get(document["name"])
        if old is None or old == document or old["unit"] != document["unit"] or not old["value"] or not document["value"]:
            continue
        grown = document["value"] / old["value"]
        factor = 1 / grown if lower_is_better(document) else grown
        found.append(Change(document["name"], document["unit"], old["value"], document["value"], factor))
    return sorted(found, key=lambda change: (change.verdict == "same", change.factor))
