"""`python -m benchmarks.report`: the page of recorded results, without measuring."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.measurement import read
from benchmarks.report.history import previous
from benchmarks.report.page import page

__all__ = ["main", "write_report"]

HERE = Path(__file__).resolve().parents[1]


def write_report(latest: Path, output: Path, before: Path | None = None) -> None:
    """Compares with `before`, by default with the newest run that was kept."""
    before_at, documents = (before.stem, read(before)) if before is not None else previous(latest)
    written = datetime.fromtimestamp(latest.stat().st_mtime, UTC)
    output.write_text(page(read(latest), documents, measured=f"Measured until {written:%Y-%m-%d %H:%M} UTC", before_at=before_at))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description="Makes a page with charts from recorded results.")
    parser.add_argument("latest", type=Path, nargs="?", default=HERE / "latest.json", help="the results; by default those of the last run")
    parser.add_argument("--before", type=Path, help="results to compare with; by default the newest in benchmarks/history")
    parser.add_argument("--output", type=Path, help="the page; by default report.html beside the results")
    arguments = parser.parse_args()
    if not read(arguments.latest):
        print(f"no results in {arguments.latest}; `make bench` measures them", file=sys.stderr)
        return 1
    output = arguments.output or arguments.latest.parent / "report.html"
    write_report(arguments.latest, output, arguments.before)
    print(output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
