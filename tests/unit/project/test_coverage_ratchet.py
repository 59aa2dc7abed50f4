"""The recorded shares only rise: `tools/coverage_ratchet.py` compares them. Here without running tests."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tools.coverage_ratchet import TOLERATED, problems, raised, shares
from tools.ratchets import PACKAGES, RECORDED


def file(lines: int, covered: int, branches: int = 0, chosen: int = 0) -> dict[str, Any]:
    return {"summary": {"num_statements": lines, "covered_lines": covered, "num_branches": branches, "covered_branches": chosen}}


REPORT = {
    "files": {
        "platform/log/waltz_log/a.py": file(70, 60, 20, 10),
        "platform/log/waltz_log/core/b.py": file(10, 10),
        "platform/spark_source/pyspark_waltz/c.py": file(3, 2),
        "platform/sink/waltz_delta/d.py": file(1, 1),
    }
}
NOW = {"waltz_log": 80.0, "pyspark_waltz": 66.6, "waltz_delta": 100.0}


def test_a_recorded_share_is_of_a_package_and_in_percent() -> None:
    recorded = json.loads(RECORDED.read_text()).get("coverage", {})
    assert set(recorded) == set(PACKAGES)
    assert all(0 < share <= 100 for share in recorded.values())


def test_a_share_counts_lines_and_branches_and_is_rounded_down() -> None:
    assert shares(REPORT) == NOW


def test_a_package_that_was_not_measured_is_an_error() -> None:
    with pytest.raises(ValueError, match="'waltz_delta': 0"):
        shares({"files": {name: each for name, each in REPORT["files"].items() if "waltz_delta" not in name}})


def test_a_share_that_fell_is_a_problem_and_one_that_rose_is_not() -> None:
    assert problems(NOW, NOW) == []
    assert problems(NOW, NOW | {"waltz_log": 81.0, "waltz_delta": 100.0 - TOLERATED}) == []
    [problem] = problems(NOW, NOW | {"waltz_log": 79.0})
    assert problem.startswith("waltz_log: the tests execute 79.0 %, 80.0 is recorded")


def test_raising_never_lowers_a_share() -> None:
    assert raised({"waltz_log": 90}, NOW) == {"waltz_log": 90, "pyspark_waltz": 66, "waltz_delta": 100}
