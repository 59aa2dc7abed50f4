"""Every call of the sink that creates a version of a table is within `one_committer`, as its source shows."""

from __future__ import annotations

import ast
from pathlib import Path

import waltz_delta

SOURCES = Path(waltz_delta.__file__).parent

READS = ("DESCRIBE ", "SELECT ", "SHOW ")
"""How statements begin that commit nothing."""

COMMITS = frozenset(
    {
        *("execute", "executeCompaction", "executeZOrderBy", "vacuum", "restoreToVersion", "restoreToTimestamp", "upgradeTableProtocol"),
        *("addFeatureSupport", "dropFeatureSupport", "save", "saveAsTable", "insertInto", "writeTo"),
    }
)
"""Methods of Delta's and Spark's writers. Nothing else of the sink has methods of these names."""


def commits(call: ast.Call) -> bool:
    if not isinstance(call.func, ast.Attribute):
        return False
    name, receiver = call.func.attr, ast.unparse(call.func.value)
    if name == "sql":
        text = ast.unparse(call.args[0]).lstrip("f").strip("\"'")
        return not text.startswith(READS) and not text.endswith("DRY RUN")
    if name == "vacuum" and "dry_run=True" in ast.unparse(call):  # deltalake lists files, and commits nothing
        return False
    return name in COMMITS or (name == "commit" and receiver.endswith("_transaction")) or (name in ("delete", "update") and "DeltaTable" in receiver)


def found(tree: ast.AST, locked: bool = False) -> list[tuple[ast.Call, bool]]:
    """Each call that commits, and whether it is within `one_committer`. The body of an inner function runs later, so the lock around its definition
    does not count."""
    calls = []
    for node in ast.iter_child_nodes(tree):
        within = locked and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if isinstance(node, ast.With):
            within = within or any(ast.unparse(item.context_expr).startswith("one_committer(") for item in node.items)
        if isinstance(node, ast.Call) and commits(node):
            calls.append((node, within))
        calls += found(node, within)
    return calls


def test_every_call_that_commits_is_within_the_lock() -> None:
    calls = [(path.relative_to(SOURCES), *each) for path in sorted(SOURCES.rglob("*.py")) for each in found(ast.parse(path.read_text()))]
    assert [f"{path}:{call.lineno} {ast.unparse(call)}" for path, call, within in calls if not within] == []
    assert {str(path) for path, _, _ in calls} == {
        *("base/internal.py", "dead_letters_replay.py", "jobs/maintain.py", "landing/merge.py", "landing/merge_tombstones.py", "landing/takeover.py"),
        *("tables/evolution.py", "tables/table.py"),
    }


def test_the_check_finds_calls_without_the_lock() -> None:
    source = """
def good(spark, path):
    with one_committer(spark, path):
        builder.execute().collect()
    spark.sql(f"DESCRIBE DETAIL delta.`{path}`")
    spark.sql(f"{vacuum} DRY RUN").count()
def bad(spark, path):
    builder.execute()
    spark.sql(f"OPTIMIZE delta.`{path}`")
    spark.sql(statement)
    self._transaction.commit(actions)
    rows.write.format("delta").save(path)
    DeltaTable.forPath(spark, path).delete("a = 1")
    with one_committer(spark, path):
        later = lambda: builder.execute()
"""
    calls = found(ast.parse(source))
    assert [call.lineno for call, within in calls if within] == [4]
    assert [call.lineno for call, within in calls if not within] == [8, 9, 10, 11, 12, 13, 15]
