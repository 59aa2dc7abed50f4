"""Finds modules of the product that use `Any` without a reason: `python tools/any_reasons.py` lists them.

`Any` turns type checking off, so it belongs to edges only, such as JSON, py4j and gRPC's own objects. A module states its reason once, in a comment
where it imports the name: `from typing import Any  # what py4j returns`. If `Any` means "anything, and it is not used", write `object` instead.
The first two arguments of `Coroutine` and `Generator` need no reason: asyncio's coroutines have no other types there.

`.ci/ratchets.json` records the count of each package, which may only fall.
"""

from __future__ import annotations

import ast
import io
import json
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RECORDED = ROOT / ".ci/ratchets.json"
PACKAGES = {"waltz_log": "platform/log", "pyspark_waltz": "platform/spark_source", "waltz_delta": "platform/sink"}
_SENT = frozenset({"Coroutine", "Generator", "AsyncGenerator"})


def uses(tree: ast.Module) -> Iterator[int]:
    """The lines that use `Any` in a type."""
    free: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple) and ast.unparse(node.value).rpartition(".")[2] in _SENT:
            free |= {id(each) for each in node.slice.elts[:-1]}
        if isinstance(node, ast.Name) and node.id == "Any" and id(node) not in free:
            yield node.lineno


def has_reason(source: str, tree: ast.Module) -> bool:
    """Whether a comment stands where the module imports `Any`."""
    lines = {
        alias.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "typing"
        for alias in node.names
        if alias.name == "Any"
    }
    return any(
        token.start[0] in lines and token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    )


def without_reason(source: str) -> list[int]:
    """The lines of a module that use `Any`, if the module states no reason."""
    tree = ast.parse(source)
    found = sorted(uses(tree))
    return [] if not found or has_reason(source, tree) else found


def findings(root: Path = ROOT) -> dict[str, list[str]]:
    """For each package, its places `file:line` that use `Any` without a reason. Generated modules are left out."""
    return {
        package: [
            f"{path.relative_to(root)}:{line}"
            for path in sorted((root / folder / package).rglob("*.py"))
            if not path.name.endswith("_pb2.py")
            for line in without_reason(path.read_text())
        ]
        for package, folder in PACKAGES.items()
    }


def problems(recorded: dict[str, int], found: dict[str, list[str]]) -> list[str]:
    """Why the findings differ from the recorded counts."""
    lines = []
    for package, places in found.items():
        if len(places) > recorded.get(package, 0):
            listed = "\n  ".join(places)
            lines.append(f"{package}: {len(places)} uses of Any without a reason, {recorded.get(package, 0)} are recorded:\n  {listed}")
        if len(places) < recorded.get(package, 0):
            lines.append(f"{package}: {len(places)} uses of Any without a reason; lower the count in .ci/ratchets.json from {recorded[package]}")
    return lines


def main() -> int:
    """Prints what differs from the recorded counts; exit code 1 if anything does."""
    found = problems(json.loads(RECORDED.read_text())["any_without_reason"], findings())
    print("\n".join(found) or "every module that uses Any states a reason, or is recorded")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
