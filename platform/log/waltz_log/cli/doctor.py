"""`waltz doctor`: what this machine offers, as a table; what to do about what is missing."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from waltz_log.cli import checks
from waltz_log.cli.printing import print_data, print_table
from waltz_log.exit_codes import LACKING, OK

__all__ = ["run"]


def run(directory: Path, output: str) -> int:
    found = checks.machine_checks(directory)
    if output != "table":
        print_data([asdict(check) for check in found], output)
    else:
        marks = {check.name: "ok" if check.ok else "no" if check.needed else "--" for check in found}
        print_table(
            ("", "check", "found", "what to do"),
            [(marks[check.name], check.name, check.found, "" if check.ok else check.advice) for check in found],
        )
    return OK if all(check.ok or not check.needed for check in found) else LACKING
