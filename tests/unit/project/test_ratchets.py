"""The recorded counts only fall: `tools/ratchets.py` compares them. Here without running pyright."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tools.ratchets import PACKAGES, RECORDED, ROOT, Finding, counts, lowered, modules, package_of, parsed, problems

LOG = Finding("platform/log/waltz_log/errors.py", 7, "reportReturnType", "Type is wrong")
SINK = Finding("platform/sink/waltz_delta/settings.py", 3, "reportCallIssue", "Call is wrong")


def test_every_package_is_recorded_and_exists() -> None:
    assert set(json.loads(RECORDED.read_text())["pyright"]) == set(PACKAGES)
    for package, folder in PACKAGES.items():
        assert (ROOT / folder / package / "__init__.py").is_file()
    assert modules() > 100


def test_the_recorded_counts_are_no_problem() -> None:
    assert problems({"waltz_log": 1, "pyspark_waltz": 0, "waltz_delta": 1}, [LOG, SINK]) == []


def test_more_findings_than_recorded_are_a_problem_that_lists_them() -> None:
    [problem] = problems({"waltz_log": 1, "pyspark_waltz": 0, "waltz_delta": 1}, [LOG, LOG._replace(line=9), SINK])
    assert problem.splitlines() == [
        "waltz_log: pyright finds 2, 1 are recorded; repair what is new:",
        "  platform/log/waltz_log/errors.py:7: reportReturnType: Type is wrong",
        "  platform/log/waltz_log/errors.py:9: reportReturnType: Type is wrong",
    ]


def test_a_package_that_is_not_recorded_may_have_no_finding() -> None:
    [problem] = problems({"waltz_log": 0}, [SINK])
    assert problem.startswith("waltz_delta: pyright finds 1, 0 are recorded")


def test_fewer_findings_than_recorded_are_a_problem_until_the_count_is_lowered() -> None:
    recorded = {"waltz_log": 2, "pyspark_waltz": 0, "waltz_delta": 0}
    [problem] = problems(recorded, [LOG])
    assert problem.startswith("waltz_log: pyright finds 1, 2 are recorded")
    assert "--lower" in problem
    assert problems(lowered(recorded, counts([LOG])), [LOG]) == []


def test_lowering_never_raises_a_count() -> None:
    recorded = {"waltz_log": 0, "pyspark_waltz": 3}
    assert lowered(recorded, counts([LOG, SINK])) == {"waltz_log": 0, "pyspark_waltz": 0, "waltz_delta": 0}


def test_a_file_outside_of_the_product_is_an_error() -> None:
    with pytest.raises(ValueError, match=re.escape("no file of the product: tools/dist.py")):
        package_of("tools/dist.py")


def test_findings_are_read_from_the_report_of_pyright(tmp_path: Path) -> None:
    report = {
        "generalDiagnostics": [
            {
                "file": str(tmp_path / LOG.file),
                "severity": "error",
                "message": "Type is wrong\n  because of this",
                "range": {"start": {"line": 6, "character": 0}},
                "rule": "reportReturnType",
            }
        ]
    }
    assert parsed(json.dumps(report), tmp_path) == [LOG]
