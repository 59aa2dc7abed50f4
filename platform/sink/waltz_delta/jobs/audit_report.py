"""The result of an audit for one table, added up over its pieces, and its printed report."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field

from waltz_delta.jobs.audit_compare import Counted, Density, Difference
from waltz_log.outside_text import printable

__all__ = ["Audited", "print_report"]


@dataclass(slots=True)
class _Partition:
    first: int
    last: int
    transactions: int = 0
    dense: bool = True
    expected: int = 0
    found: int = 0
    checksum: int = 0
    agrees: bool = True


@dataclass(slots=True)
class Audited:
    """Every `Difference` is a fault; `notes` name what could not be checked."""

    table: str
    mode: str
    partitions: dict[int, _Partition] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add_density(self, found: Iterable[Density]) -> None:
        for each in found:
            known = self.partitions.setdefault(each.partition, _Partition(each.first, each.last))
            known.last = max(known.last, each.last)
            known.transactions += each.count
            known.dense = known.dense and not each.differences
            self.differences += each.differences

    def add_rows(self, counted: Iterable[Counted]) -> None:
        for each in counted:
            known = self.partitions.setdefault(each.partition, _Partition(0, -1))
            known.expected += each.expected
            known.found += each.found
            known.checksum = (known.checksum + each.checksum) % (1 << 64)
            known.agrees = known.agrees and each.agrees

    def as_json(self) -> dict[str, object]:
        return {
            "table": self.table,
            "mode": self.mode,
            "partitions": {str(partition): asdict(found) for partition, found in sorted(self.partitions.items())},
            "differences": [asdict(difference) for difference in self.differences],
            "notes": self.notes,
        }


def print_report(audited: Sequence[Audited], output: str, shown: int) -> None:
    if output == "json":
        print(json.dumps([each.as_json() for each in audited], indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for each in audited:
        appended = each.mode == "append"
        columns = ("rows expected", "rows found", "checksum") if appended else ()
        report = Table("partition", "ids", "transactions", *columns, "", box=None, title=f"{each.table} ({each.mode})", title_justify="left")
        for partition, found in sorted(each.partitions.items()):
            rows = (f"{found.expected:,}", f"{found.found:,}", f"{found.checksum:016x}") if appended else ()
            verdict = "ok" if found.agrees and found.dense else "differs"
            report.add_row(str(partition), f"{found.first}-{found.last}", f"{found.transactions:,}", *rows, verdict)
        console.print(report)
        for note in each.notes:
            console.print(printable(f"  note: {note}"), markup=False, highlight=False, soft_wrap=True)
        for difference in each.differences[:shown]:
            console.print(printable(f"  {difference}"), markup=False, highlight=False, soft_wrap=True)
        if len(each.differences) > shown:
            console.print(f"  and {len(each.differences) - shown} more", markup=False, highlight=False)
        if not each.differences:
            console.print("  no difference", markup=False, highlight=False)
