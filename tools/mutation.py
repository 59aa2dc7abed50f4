"""`make mutation`: changes one token of the product at a time, and runs the tests that should notice. A change that no test notices survives.

The places are drawn with a seed from the packages that decide what is committed, locked, permitted, kept and trimmed. Each change is made in a copy
of `platform/`, never in the checkout. A survivor is printed with its line before and after, and saved in `var/mutation`. Survivors that change
nothing are listed with the reason in `tools/mutation_explained.txt`. Exit code 1 if another one survived.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["AREAS", "Change", "changes", "explained", "survives"]

ROOT: Final = Path(__file__).resolve().parents[1]
EXPLAINED: Final = ROOT / "tools" / "mutation_explained.txt"

AREAS: Final = {
    "platform/log/waltz_log/core": ("tests/unit/log/core", "tests/unit/log/server/replication"),
    "platform/log/waltz_log/security": ("tests/unit/log/security",),
    "platform/log/waltz_log/server/ordering": ("tests/unit/log/server/ordering", "tests/unit/log/core/locks"),
    "platform/sink/waltz_delta/marks": ("tests/unit/sink/marks",),
}
"""The folders that are changed, and the tests that must notice."""

TEST_TIMEOUT_S: Final = 300.0
"""For the tests of one change: several times what they need. A change that makes them hang is noticed, too."""

_COMPARED: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_COMPUTED: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
_NAMES: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True, slots=True)
class Change:
    """Of one file: the source from `start` to `end` (offsets in bytes) becomes `text`."""

    path: str
    line: int
    start: int
    end: int
    text: str

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.text.encode() + source[self.end :]

    def describe(self, source: bytes) -> str:
        """The changed line before and after, as `tools/mutation_explained.txt` lists it after a file's name."""
        before, after = (each.decode().splitlines()[self.line - 1].strip() for each in (source, self.apply(source)))
        return f"{self.path}: {before} => {after}"


def changes(path: str, source: bytes) -> list[Change]:
    """Every change of one token that the file allows, except in docstrings, assertions, annotations and messages of errors."""
    offsets = [0]
    for line in source.splitlines(keepends=True):
        offsets.append(offsets[-1] + len(line))
    found: list[Change] = []
    for node in _decisions(ast.parse(source)):
        if (text := _replacement(node)) is not None:
            assert isinstance(node, ast.expr)
            assert node.end_lineno is not None
            assert node.end_col_offset is not None
            start, end = offsets[node.lineno - 1] + node.col_offset, offsets[node.end_lineno - 1] + node.end_col_offset
            found.append(Change(path, node.lineno, start, end, text))
    return found


def _decisions(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes in this one whose change could change what the code decides."""
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom):
        return
    yield node
    inside: Iterable[ast.AST | None] = ast.iter_child_nodes(node)
    if isinstance(node, ast.AnnAssign):
        inside = [node.value]
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        inside = [*node.args.defaults, *node.args.kw_defaults, *node.body]
    for child in inside:
        if child is not None:
            yield from _decisions(child)


def _replacement(node: ast.AST) -> str | None:
    """The source of what the node becomes; None: it stays."""
    changed: ast.expr | None = None
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARED:
        changed = ast.Compare(node.left, [_COMPARED[type(node.ops[0])]()], node.comparators)
    elif isinstance(node, ast.BinOp) and type(node.op) in _COMPUTED:
        changed = ast.BinOp(node.left, _COMPUTED[type(node.op)](), node.right)
    elif isinstance(node, ast.BoolOp):
        changed = ast.BoolOp(ast.And() if isinstance(node.op, ast.Or) else ast.Or(), node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        changed = node.operand
    elif isinstance(node, ast.Name) and node.id in _NAMES:
        changed = ast.Name(_NAMES[node.id])
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        changed = ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        changed = ast.Constant(node.value + 1)
    return None if changed is None else f"({ast.unparse(changed)})"


def explained() -> set[str]:
    """Changes that no test can notice, as `Change.describe` writes them."""
    lines = EXPLAINED.read_text().splitlines() if EXPLAINED.exists() else []
    return {line.partition("  # ")[0] for line in lines if line and not line.startswith("#")}


def survives(change: Change, copy: Path, tests: Sequence[str]) -> bool:
    """Whether the tests pass with the change. `copy`: a copy of `platform/`, which is as it was afterwards."""
    file = copy / Path(change.path).relative_to("platform")
    source = file.read_bytes()
    file.write_bytes(change.apply(source))
    roots = [str(copy / each) for each in ("log", "spark_source", "sink")]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header", *tests]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(roots), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=TEST_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return False
    finally:
        file.write_bytes(source)
    return done.returncode == 0


def _drawn(only: str, rng: random.Random, count: int) -> list[tuple[Change, tuple[str, ...]]]:
    found = []
    for area, tests in AREAS.items():
        for path in sorted((ROOT / area).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            if name.startswith(only):
                found += [(each, tests) for each in changes(name, path.read_bytes())]
    return rng.sample(found, min(count, len(found)))


def main() -> int:
    parser = argparse.ArgumentParser(prog="make mutation", description="changes one token at a time, which a test must notice")
    parser.add_argument("--changes", type=int, default=100)
    parser.add_argument("--seed", type=int, default=None, help="draws the places; printed, so that a run can be repeated")
    parser.add_argument("--only", default="", help="files whose path begins with this")
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 30) if given.seed is None else given.seed
    known, survivors, equal = explained(), list[str](), 0
    drawn = _drawn(given.only, random.Random(seed), given.changes)
    print(f"seed {seed}: {len(drawn)} changes", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "platform"
        shutil.copytree(ROOT / "platform", copy, ignore=shutil.ignore_patterns("__pycache__"))
        for change, tests in drawn:
            text = change.describe((ROOT / change.path).read_bytes())
            if text in known:
                equal += 1
            elif survives(change, copy, tests):
                survivors.append(text)
                print(f"survived: line {change.line} of {text}", flush=True)
    saved = ROOT / "var" / "mutation" / f"{seed}.txt"
    saved.parent.mkdir(parents=True, exist_ok=True)
    saved.write_text("".join(f"{each}\n" for each in survivors))
    print(f"{len(drawn) - equal - len(survivors)} noticed, {equal} explained, {len(survivors)} survived ({saved.relative_to(ROOT)})")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
