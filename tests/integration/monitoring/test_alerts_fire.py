"""A real Prometheus over a real cluster, in a short version of `make alerts`: rules that wait a third of the time, and a short quiet period."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.monitoring.promtool import needs_prometheus
from verification.alerts.faults import Pace, run
from verification.alerts.prometheus import CONF, faster

pytestmark = pytest.mark.timeout(900)

PLANTED = 19
"""Pairs of a fault and an alert."""


@needs_prometheus
@pytest.mark.long
def test_each_planted_fault_alerts_in_time_and_a_quiet_period_raises_nothing(tmp_path: Path) -> None:
    report = run(tmp_path, Pace(interval_s=2.0, factor=3.0, quiet_s=10.0))
    assert report.problems == []
    assert len(report.alerted) == PLANTED


def test_faster_rules_wait_less_and_stay_the_same_otherwise() -> None:
    rules = (CONF / "alerts.yml").read_text()
    assert faster(rules, 1) == rules
    quick = faster(rules, 3)
    assert "for: 30s" not in quick
    assert "for: 10s" in quick
    assert "[20s]" in quick
    assert len(quick.splitlines()) == len(rules.splitlines())
