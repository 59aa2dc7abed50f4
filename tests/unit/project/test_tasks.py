"""Tasks are made in one module, so that none of them ends unnoticed (`waltz_log.background_tasks`)."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

MAKERS = {"create_task", "ensure_future", "TaskGroup"}

KNOWN = {
    "log/waltz_log/background_tasks.py: create_task": "the place itself",
    "log/waltz_log/background_tasks.py: ensure_future": "the place itself, for anything that can be awaited",
    "log/waltz_log/uninterrupted.py: ensure_future": "awaited at once, whatever cancels its caller",
    "log/waltz_log/cli/cluster/replica_moves.py: TaskGroup": "a command, which ends with the first error",
    "log/waltz_log/cli/cluster/replica_moves.py: create_task": "in the group of a command",
    "log/waltz_log/cli/cluster/replicas.py: TaskGroup": "a command, which ends with the first error",
    "log/waltz_log/cli/cluster/replicas.py: create_task": "in the group of a command",
    "log/waltz_log/testing/injection.py: create_task": "faults of tests",
    "log/waltz_log/testing/memory_connection.py: create_task": "the process of a test that serves a call",
    "log/waltz_log/testing/virtual_time.py: create_task": "a simulated process",
}


def _found(root: Path) -> Counter[str]:
    found = Counter[str]()
    for path in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MAKERS:
                found[f"{path.relative_to(root)}: {node.func.attr}"] += 1
    return found


def test_each_place_that_makes_a_task_outside_the_helper_is_known() -> None:
    assert sorted(_found(ROOT / "platform")) == sorted(KNOWN)


def test_a_new_place_is_found(tmp_path: Path) -> None:
    source = "import asyncio\n\nasync def work(loop):\n    asyncio.ensure_future(work())\n    loop.create_task(work())\n    asyncio.TaskGroup()\n"
    (tmp_path / "new.py").write_text(source)
    assert sorted(_found(tmp_path)) == ["new.py: TaskGroup", "new.py: create_task", "new.py: ensure_future"]
