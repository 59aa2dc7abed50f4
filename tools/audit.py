"""`make audit`: asks pip-audit whether a pinned package has a known vulnerability.

Exit code 1 if one has. The vulnerabilities are in the package index's database. An index without this database, such as a mirror, says nothing about
any package. This is reported, and does not count as clean. The exit code is then 3, or 0 with `--offline-ok`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT_S = 300
UNCHECKED = 3


class Findings(NamedTuple):
    """`vulnerable`: package, version and identifier of each vulnerability. `checked`, `unchecked`: packages with an answer, and without one."""

    vulnerable: list[str]
    checked: int
    unchecked: int


def read_findings(report: dict[str, Any]) -> Findings:
    """Of pip-audit's JSON."""
    vulnerable, unchecked = list[str](), 0
    for each in report["dependencies"]:
        unchecked += "skip_reason" in each
        for found in each.get("vulns", ()):
            fixed = ", ".join(found["fix_versions"]) or "no version"
            vulnerable.append(f"{each['name']} {each['version']}: {found['id']}, fixed in {fixed}")
    return Findings(vulnerable, len(report["dependencies"]) - unchecked, unchecked)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make audit", description="known vulnerabilities of the pinned packages")
    parser.add_argument("--offline-ok", action="store_true", help="end with 0 where no vulnerability database answers")
    given = parser.parse_args()
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(ROOT / "constraints.txt"), "--no-deps", "--disable-pip"]
    command += ["--format", "json", "--progress-spinner", "off", "--timeout", "15"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    try:
        findings = read_findings(json.loads(done.stdout))
    except (ValueError, KeyError):
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        print(f"audit: nothing was checked: {last}", file=sys.stderr)
        return 0 if given.offline_ok else UNCHECKED
    for each in findings.vulnerable:
        print(each)
    if not findings.checked:
        print(f"audit: nothing was checked: the package index has no vulnerability database for {findings.unchecked} packages", file=sys.stderr)
        return 0 if given.offline_ok else UNCHECKED
    print(f"audit: {findings.checked} packages checked, {findings.unchecked} not, {len(findings.vulnerable)} vulnerabilities")
    return 1 if findings.vulnerable else 0


if __name__ == "__main__":
    sys.exit(main())
