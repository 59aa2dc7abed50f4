"""The recipes of docs/guides/recipes.md, each run as it stands after the page's beginning, over a log of its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspark_waltz.testing import StubCluster

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "guides" / "recipes.md").read_text()
BEGINNING, *SECTIONS = re.split(r"^## ", PAGE, flags=re.MULTILINE)


class Client:
    """Appends to the stub, as `SyncWaltzClient` to a log."""

    def __init__(self, cluster: StubCluster) -> None:
        self._cluster = cluster

    def append(self, partition: int, data: bytes) -> None:
        self._cluster.append(partition, [data])


@pytest.fixture
def session_catalog(spark: Any) -> Iterator[None]:
    """A recipe sets it; the session is shared."""
    name = "spark.sql.catalog.spark_catalog"
    before = spark.conf.get(name)
    yield
    spark.conf.set(name, before)


def programs(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


@pytest.mark.usefixtures("session_catalog")
@pytest.mark.parametrize("section", SECTIONS, ids=[section.split("\n")[0] for section in SECTIONS])
def test_a_recipe_does_what_it_says(spark: Any, stub: Callable[..., StubCluster], tmp_path: Path, section: str) -> None:
    cluster = stub(partitions=2)
    names: dict[str, Any] = {
        "spark": spark,
        "lake": str(tmp_path / "lake"),
        "cluster": cluster.address,
        "cluster_key": str(cluster.key),
        "client": Client(cluster),
    }
    assert programs(section)
    for program in programs(BEGINNING) + programs(section):
        local = program.replace('format("waltz")', 'format("waltz_stub")').replace("USING waltz ", "USING waltz_stub ")
        exec(compile(local, "docs/guides/recipes.md", "exec"), names)


def test_the_recipes_are_those_that_users_ask_for() -> None:
    assert [section.split("\n")[0] for section in SECTIONS] == [
        "Rebuild a table from the log",
        "Change a column's type, and replay dead letters",
        "Drop and recreate a table",
        "Move a table",
        "Read the log from BI tools",
        "Correct the past",
    ]
