"""`waltz doctor`: what this machine offers, as a table; what to do about what is missing."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from waltz_log.cli import checks
from waltz_log.exit_codes import LACKING, OK

__all__ = ["run"]


def run(directory: Path, output: str) -> int:
    found = checks.machine_checks(directory)
    if output == "json":
        print(json.dumps([asdict(check) for check in found], indent=2))
    else:
        from rich.console import Console
        from rich.table import Table

        table = Table("", "check", "found", "what to do", box=None)
        for check in found:
            mark = "[green]ok[/]" if check.ok else "[red]no[/]" if check.needed else "[yellow]--[/]"
            table.add_row(mark, check.name, check.found, "" if check.ok else check.advice)
        Console().print(table)
    return OK if all(check.ok or not check.needed for check in found) else LACKING
