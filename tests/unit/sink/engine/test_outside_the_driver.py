"""`deltalake` panics in a process that is forked after it was used, so only the driver uses it. It holds Python's lock in some calls, which the
driver therefore leaves out."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

PLATFORM = Path(__file__).parents[4] / "platform"

IMPORTS = """
import importlib, pkgutil, sys

sys.modules["deltalake"] = None  # an import raises
for package in ("waltz_delta", "pyspark_waltz"):
    for each in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
        if not each.name.endswith("__main__"):
            importlib.import_module(each.name)
            print(each.name)
"""


def test_no_module_of_a_task_imports_deltalake() -> None:
    """Every module of the product is imported where `deltalake` cannot be: the functions that need it import it when the driver calls them."""
    found = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr[-2000:]
    assert {"waltz_delta.engine.parquet_files", "waltz_delta.engine.written_files", "pyspark_waltz.source"} <= set(found.stdout.split())


FORKED = """
import os, sys, traceback
import pyarrow as pa
from verification.lake.log_table import append, opened
from waltz_delta.engine.file_statistics import indexed_leaves
from waltz_delta.engine.parquet_files import FilePlan, write_files

place = sys.argv[1]
append(opened(place), 0, 3)
child = os.fork()
if child == 0:
    try:
        sys.modules["deltalake"] = None
        schema = pa.schema([("id", pa.int64())])
        plan = FilePlan(place, {}, schema, frozenset(), (), tuple(indexed_leaves(schema, {})), "snappy", "0" * 32)
        (batch,) = write_files(plan, iter(pa.table({"id": [7]}, schema).to_batches()), task=0, attempt=0)
        os._exit(0 if batch.num_rows == 1 else 3)
    except BaseException:
        traceback.print_exc()
        os._exit(4)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert append(opened(place), 3, 5) == 1
"""


def test_a_process_that_is_forked_from_a_driver_writes_files_and_the_driver_commits_again(tmp_path: Path) -> None:
    found = subprocess.run([sys.executable, "-W", "error", "-c", FORKED, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert found.returncode == 0, found.stderr[-2000:]


def users() -> list[Path]:
    """The modules that use `deltalake`."""
    found = [path for path in (PLATFORM / "sink").rglob("*.py") if re.search(r"^ +from deltalake[. ]", path.read_text(), re.MULTILINE)]
    assert len(found) > 8
    return found


HOLDING = ("history", "QueryBuilder")


def holding(tree: ast.AST) -> list[str]:
    """The calls that hold Python's lock while a store answers."""
    named = ((node.attr if isinstance(node, ast.Attribute) else node.id) for node in ast.walk(tree) if isinstance(node, ast.Attribute | ast.Name))
    return [name for name in named if name in HOLDING]


def test_the_engine_makes_no_call_that_holds_the_lock_of_python() -> None:
    assert sorted(holding(ast.parse("table.history(1); deltalake.QueryBuilder(); QueryBuilder()"))) == ["QueryBuilder", "QueryBuilder", "history"]
    sources = [path for path in users() if "console" not in path.parts]
    assert {str(path): calls for path in sources if (calls := holding(ast.parse(path.read_text())))} == {}


def test_the_product_neither_compacts_nor_deletes_by_deltalake() -> None:
    """Two compactions of `deltalake` at once both commit, and then every row is there twice. Its VACUUM also deletes foreign files."""
    nodes = [node for path in (PLATFORM / "sink").rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))]
    assert {node.attr for node in nodes if isinstance(node, ast.Attribute)} & {"compact", "optimize", "z_order"} == set()
    vacuums = [node for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "vacuum"]
    assert ["dry_run=True" in ast.unparse(node) for node in vacuums] == [True]
