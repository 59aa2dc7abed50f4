"""Which metrics the alerts and dashboards of conf/monitoring name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

import yaml

__all__ = ["CONF", "expressions", "families_in", "named_metrics"]

CONF = Path(__file__).resolve().parents[3] / "conf" / "monitoring"


def expressions() -> list[str]:
    """Of all rules and panels."""
    rules = (rule["expr"] for group in yaml.safe_load((CONF / "alerts.yml").read_text())["groups"] for rule in group["rules"])
    dashboards = [json.loads(path.read_text()) for path in sorted((CONF / "dashboards").glob("*.json"))]
    panels = (target["expr"] for dashboard in dashboards for panel in dashboard["panels"] for target in panel["targets"])
    return [*rules, *panels]


def named_metrics() -> set[str]:
    """Names of families of the platform and of its processes: without the suffixes of histograms."""
    found = {name for expression in expressions() for name in re.findall(r"\b(?:waltz|process)_[a-z_]+\b(?!:)", expression)}
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in found}


def families_in(exposition: Iterable[str]) -> set[str]:
    """Names of the families that a scrape declares, with or without samples."""
    return {line.split()[2] for text in exposition for line in text.splitlines() if line.startswith("# TYPE ")}
