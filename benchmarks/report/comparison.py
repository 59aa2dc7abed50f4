"""A run beside the one before: which figures were measured again, and whether they became better. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Change", "changes", "lower_is_better"]

LOWER_UNITS = frozenset({"ms", "s", "us", "ns", "us/txn", "B/txn", "MiB", "executions", "ratio of time"})
"""Units of which less is better. Of rates, more is."""

NOISE = 0.15
"""On shared machines a figure changes by as much from run to run."""

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
    """Of a figure, by its unit and its name: a share of time or of processor is a cost as well."""
    name = str(document["name"])
    return document["unit"] in LOWER_UNITS or name.endswith(("_ms", "_s", "_executions", "_cost")) or name.startswith("costs.")


def changes(before: Iterable[Document], after: Iterable[Document]) -> Sequence[Change]:
    """Of the figures that both have under the same name and unit and that were measured again, those that changed most first."""
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
