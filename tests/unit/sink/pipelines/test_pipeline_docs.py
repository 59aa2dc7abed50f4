"""The pages about pipelines and log positions say what the code does: every metric, argument and call."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import waltz_delta
from tools.pipeline_metrics import metrics_table
from waltz_delta.jobs import audit, backfill, maintain
from waltz_delta.jobs.job_arguments import _parser
from waltz_delta.pipelines.pipeline_file import check_pipeline_file

DOCS = Path(__file__).resolve().parents[4] / "docs"
PIPELINES = (DOCS / "guides" / "pipelines.md").read_text()
POSITIONS = (DOCS / "concepts" / "log_positions.md").read_text()


def test_the_page_has_every_metric() -> None:
    assert metrics_table() in PIPELINES, "python -m tools.pipeline_metrics prints the table"


def test_every_argument_is_on_the_page() -> None:
    rows = {row[1]: row[0] for row in re.findall(r"(\| `(\w+)\.py` \|.*)", PIPELINES)}
    further = dict(re.findall(r"^Further arguments of `(\w+)\.py`:\n\n((?:[- ] .*\n)+)", PIPELINES, re.MULTILINE))
    asked = {"ingest": set(_parser("ingest", False)._option_string_actions), "upsert": set(_parser("upsert", True)._option_string_actions)}
    for name, module in (("backfill", backfill), ("maintain", maintain), ("audit", audit)):
        source = inspect.getsource(inspect.getmodule(getattr(module, name)) or module)
        asked[name] = set(re.findall(r'add_argument\(\s*"(--[a-z-]+)"', source))
    for name, arguments in asked.items():
        reported = set(re.findall(r"`(--[a-z-]+)`", rows[name] + further.get(name, "")))
        if name == "upsert":
            reported |= set(re.findall(r"`(--[a-z-]+)`", rows["ingest"] + further["ingest"])) - {"--pipeline"}
        assert reported == {argument for argument in arguments if argument.startswith("--")} - {"--help"}, name


def test_the_example_is_a_pipeline(tmp_path: Path) -> None:
    path = tmp_path / "orders.yaml"
    path.write_text(re.findall(r"```yaml\n(.*?)```", PIPELINES, re.DOTALL)[0])
    found, problems = check_pipeline_file(path, {"WALTZ_DATA": "/lake"})
    assert problems == []
    assert found is not None
    assert found.tables == ["/lake/tables/orders", "/lake/tables/order_states"]


@pytest.mark.parametrize("name", sorted(set(re.findall(r"^\| `(\w+)\(", POSITIONS, re.MULTILINE))))
def test_every_call_of_the_page_is_there_with_its_arguments(name: str) -> None:
    call = getattr(waltz_delta, name)
    reported = re.findall(rf"^\| `{name}\(([^)]*)\)`", POSITIONS, re.MULTILINE)[0]
    assert [argument.strip() for argument in reported.split(",")] == list(inspect.signature(call).parameters)[: len(reported.split(","))]
