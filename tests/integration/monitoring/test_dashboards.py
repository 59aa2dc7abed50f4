"""The dashboards of conf/monitoring: written by the tool, readable by Grafana, and of queries that Prometheus accepts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.integration.monitoring.named_metrics import CONF, expressions, named_metrics
from tests.integration.monitoring.promtool import needs_prometheus, promtool
from tools.dashboards import DASHBOARDS, Dashboard, text
from waltz_delta.pipelines.metrics import METRICS
from waltz_log.monitoring.exposition import families_of

PLACE_HOLDERS = {"$__rate_interval": "1m", "$partition": ".*", "$pipeline": ".*"}


def test_there_is_a_dashboard_for_each_part() -> None:
    assert {dashboard.name for dashboard in DASHBOARDS} == {"cluster", "partition", "storage", "spark", "tables"}
    assert {path.stem for path in (CONF / "dashboards").iterdir()} == {dashboard.name for dashboard in DASHBOARDS}


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda each: each.name)
def test_the_file_is_what_the_tool_writes(dashboard: Dashboard) -> None:
    """python -m tools.dashboards writes them again."""
    assert (CONF / "dashboards" / f"{dashboard.name}.json").read_text() == text(dashboard)


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda each: each.name)
def test_panels_have_places_of_their_own_and_known_variables(dashboard: Dashboard) -> None:
    found = json.loads(text(dashboard))
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in found["panels"]]
    assert len(set(places)) == len(places)
    variables = {variable["name"] for variable in found["templating"]["list"]}
    used = {name for name in ("partition", "pipeline") if f"${name}" in text(dashboard)}
    assert used == variables - {"datasource"}


@needs_prometheus
def test_prometheus_accepts_every_query(tmp_path: Path) -> None:
    rules = []
    for number, expression in enumerate(expressions()):
        for name, value in PLACE_HOLDERS.items():
            expression = expression.replace(name, value)
        rules.append({"record": f"panel:{number}:query", "expr": expression})
    path = tmp_path / "queries.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    promtool("check", "rules", str(path))


def test_every_metric_that_a_rule_or_panel_names_is_declared() -> None:
    """Against live scrapes: tests/integration/log/test_monitoring.py and tests/e2e/test_jobs_run.py."""
    declared = {family.name for role in ("server", "storage") for family in families_of(role)}
    declared |= {metric.name for metric in METRICS} | {"process_cpu_seconds_total", "process_resident_memory_bytes"}
    assert named_metrics() - declared == set()


def test_every_metric_of_a_pipeline_is_on_a_dashboard_or_in_an_alert() -> None:
    assert {metric.name for metric in METRICS} <= named_metrics()
