"""The alerts of conf/monitoring: each fires for its fault, none in a quiet period, and each has a section in the runbook."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.monitoring.promtool import needs_prometheus, promtool
from tests.integration.monitoring.rule_cases import FIRING, QUIET, QUIET_S, STEP_S, Case

ROOT = Path(__file__).resolve().parents[3]
CONF = ROOT / "conf" / "monitoring"
RUNBOOK = "docs/guides/runbook.md"
RULE_FILES = [CONF / "alerts.yml", CONF / "thresholds.yml"]

ALERTS: dict[str, dict[str, Any]] = {
    rule["alert"]: rule for group in yaml.safe_load((CONF / "alerts.yml").read_text())["groups"] for rule in group["rules"] if "alert" in rule
}

CHANGE_S = 4 * STEP_S
"""When the series of a firing case change."""


@needs_prometheus
def test_promtool_accepts_the_rules_and_the_configuration() -> None:
    promtool("check", "rules", *map(str, RULE_FILES))
    promtool("check", "config", str(CONF / "prometheus.yml"))


@needs_prometheus
@pytest.mark.parametrize("case", FIRING, ids=lambda case: case.alert)
def test_an_alert_fires_for_its_fault_and_not_before(case: Case, tmp_path: Path) -> None:
    fires = {
        "exp_labels": {**case.labels, "severity": ALERTS[case.alert]["labels"]["severity"]},
        "exp_annotations": {"summary": case.summary, "runbook_url": ALERTS[case.alert]["annotations"]["runbook_url"]},
    }
    expected: list[dict[str, Any]] = [
        {"eval_time": f"{CHANGE_S - 1}s", "alertname": case.alert},
        {"eval_time": f"{CHANGE_S + STEP_S + case.within_s}s", "alertname": case.alert, "exp_alerts": [fires]},
    ]
    _check(tmp_path, case.series, expected)


@needs_prometheus
def test_a_quiet_period_raises_nothing(tmp_path: Path) -> None:
    _check(tmp_path, QUIET, [{"eval_time": f"{second}s", "alertname": alert} for alert in ALERTS for second in range(0, QUIET_S, 60)])


@needs_prometheus
def test_a_check_of_the_rules_that_must_fail_does(tmp_path: Path) -> None:
    """The quiet period with one planted fault: promtool notices."""
    with pytest.raises(AssertionError, match="WaltzProcessDown"):
        _check(tmp_path, {**QUIET, 'up{job="waltz-servers", instance="a:1"}': "1x100 0x140"}, [{"eval_time": "30m", "alertname": "WaltzProcessDown"}])


def _check(directory: Path, series: dict[str, str], expected: list[dict[str, Any]]) -> None:
    values = [{"series": each, "values": value} for each, value in series.items()]
    test = {"interval": f"{STEP_S}s", "input_series": values, "alert_rule_test": expected}
    path = directory / "test.yml"
    path.write_text(yaml.safe_dump({"rule_files": [str(each) for each in RULE_FILES], "evaluation_interval": f"{STEP_S}s", "tests": [test]}))
    promtool("test", "rules", str(path))


def test_each_alert_has_a_case_in_which_it_fires() -> None:
    assert {case.alert for case in FIRING} == set(ALERTS)


def test_the_quiet_period_has_all_series_that_alerts_read() -> None:
    read = {name for rule in ALERTS.values() for name in re.findall(r"\b(?:waltz_[a-z_]+|up)\b", rule["expr"])}
    assert read == {series.partition("{")[0] for series in QUIET}


def test_each_alert_links_to_its_section_of_the_runbook_and_each_section_is_of_an_alert() -> None:
    sections = re.findall(r"^## (Waltz\w+)$", (ROOT / RUNBOOK).read_text(), re.MULTILINE)
    assert sorted(sections) == sorted(ALERTS)
    assert {name: rule["annotations"]["runbook_url"] for name, rule in ALERTS.items()} == {name: f"{RUNBOOK}#{name.lower()}" for name in ALERTS}
    assert {rule["labels"]["severity"] for rule in ALERTS.values()} == {"critical", "warning"}
