"""`waltz doctor`: what this machine offers, as a table; what to do about what is missing."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path

from waltz_log.cli import checks
from waltz_log.cli.printing import print_data, print_table
from waltz_log.exit_codes import LACKING, OK

__all__ = ["run"]


def run(directory: Path, output: str, coordinator: str | None = None) -> int:
    """`coordinator`: an ensemble to check too."""
    found = checks.machine_checks(directory)
    if coordinator is not None:
        from waltz_log.cli.ensemble_check import check_ensemble

        found.append(asyncio.run(check_ensemble(coordinator)))
    if output != "table":
        print_data([asdict(check) for check in found], output)
    else:
        marks = {check.name: "ok" if check.ok else "no" if check.needed else "--" for check in found}
        print_table(
            ("", "check", "found", "what to do"),
            [(marks[check.name], check.name, check.found, "" if check.ok else check.advice) for check in found],
        )
    return OK if all(check.ok or not check.needed for check in found) else LACKING
