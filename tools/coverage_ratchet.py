"""How much of each package a run of tests executes, recorded in `.ci/ratchets.json`.

`python -m tools.coverage_ratchet [--raise] ARGUMENTS OF PYTEST` counts lines and branches, in percent. It fails if a package has a smaller share than
recorded. `--raise` records the shares that rose. A share never falls.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tools.ratchets import PACKAGES, RECORDED, ROOT, package_of

REPORT = ROOT / "var/coverage/report.json"
TOLERATED = 0.2
"""Points by which a share may differ from run to run: threads and time-outs run another branch."""


def shares(report: Mapping[str, Any]) -> dict[str, float]:
    """The share of each package in percent, rounded down to a tenth, from coverage's JSON. Raises `ValueError` if a package has no line in it."""
    executed, present = dict.fromkeys(PACKAGES, 0), dict.fromkeys(PACKAGES, 0)
    for file, found in report["files"].items():
        summary, package = found["summary"], package_of(Path(file).as_posix())
        executed[package] += summary["covered_lines"] + summary["covered_branches"]
        present[package] += summary["num_statements"] + summary["num_branches"]
    if not all(present.values()):
        raise ValueError(f"a package was not measured: {present}")
    return {package: math.floor(1000 * executed[package] / present[package]) / 10 for package in PACKAGES}


def problems(recorded: Mapping[str, float], now: Mapping[str, float]) -> list[str]:
    """The packages whose share fell."""
    return [
        f"{package}: the tests execute {now[package]} %, {recorded[package]} is recorded; add tests of what is new"
        for package in PACKAGES
        if package in recorded and now[package] < recorded[package] - TOLERATED
    ]


def raised(recorded: Mapping[str, int], now: Mapping[str, float]) -> dict[str, int]:
    """The recorded shares, with those that rose, rounded down to a whole percent."""
    return {package: max(recorded.get(package, 0), math.floor(now[package])) for package in PACKAGES}


def main(arguments: list[str]) -> int:
    """Runs pytest. Exit code 1 if a test fails or a share fell."""
    raising = arguments[:1] == ["--raise"]
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "--cov", f"--cov-report=json:{REPORT}", *arguments[raising:]]
    if (code := subprocess.run(command, cwd=ROOT, check=False).returncode) != 0:
        return code
    recorded = json.loads(RECORDED.read_text())
    now = shares(json.loads(REPORT.read_text()))
    if raising:
        recorded["coverage"] = raised(recorded.get("coverage", {}), now)
        RECORDED.write_text(f"{json.dumps(recorded, indent=2)}\n")
    if unrecorded := sorted({*PACKAGES} - {*recorded.get("coverage", {})}):
        print(f"nothing is recorded for {', '.join(unrecorded)}: record the shares with make coverage RAISE=1")
    found = problems(recorded.get("coverage", {}), now)
    print("\n".join(found) or "coverage in percent: " + ", ".join(f"{package} {share}" for package, share in now.items()))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
