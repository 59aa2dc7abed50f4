"""The programs of docs/reference/delta.md, run as they stand over a small log."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyspark_waltz.testing import StubCluster

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "delta.md"


@pytest.mark.long
def test_every_program_of_the_page_runs(spark: Any, stub: Callable[..., StubCluster], tmp_path: Path) -> None:
    cluster = stub(partitions=2)
    legs = [b'{"tail": "N0", "leg": 1, "origin": "jfk"}', b'{"tail": "N0", "leg": "two"}', b'{"tail": "N0"}']
    cluster.append(0, legs, headers=lambda at: 9 if at == 2 else 1)
    cluster.append(1, [json.dumps({"tail": "N1", "leg": 3, "origin": "lax"}).encode()], headers=lambda _: 1)
    names: dict[str, Any] = {"spark": spark, "lake": str(tmp_path), "cluster_key": str(cluster.key)}
    programs = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(programs) == 4
    for program in programs:
        local = program.replace('format("waltz")', 'format("waltz_stub")').replace("10.0.0.5:5101", cluster.address)
        exec(compile(local, str(PAGE), "exec"), names)
    read = spark.read.format("delta")
    assert sorted((r.tail, r.leg, r.origin) for r in read.load(f"{tmp_path}/legs").collect()) == [("N0", 1, "JFK"), ("N1", 3, "LAX")]
    assert [r.tail for r in read.load(f"{tmp_path}/aircraft").collect()] == ["N1"]
    assert {(r.transaction_id, r.reason) for r in read.load(f"{tmp_path}/dead_letters").collect()} == {(1, "leg is not INT: two")}
    assert names["landing"].statistics().dead_letters == 2, "counted while the tables were written"
    assert [(each.landed, each.still) for each in names["reports"]] == [(0, 1), (0, 1)]
