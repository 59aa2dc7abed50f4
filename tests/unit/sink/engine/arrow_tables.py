"""Tables of the Arrow engine without Spark, and commits that a test replaces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from verification.lake import log_table
from verification.lake.log_table import MARK, METADATA, SHAPE, append, begin, commit, files
from waltz_delta.engine import commit_files
from waltz_delta.engine.arrow_table import ArrowTable, OpenedTable

__all__ = ["MARK", "METADATA", "SHAPE", "append", "begin", "commit", "creating", "files", "held", "opened"]


def opened(path: Path | str, storage: Mapping[str, str] | None = None) -> ArrowTable:
    return log_table.opened(str(path), storage)


def held(path: Path) -> list[int]:
    """The ids in the table, as another reader finds them."""
    return sorted(DeltaTable(str(path)).to_pyarrow_table()["id"].to_pylist())


@contextmanager
def creating(monkeypatch: Any, replaced: Callable[[OpenedTable, Callable[[], None]], None]) -> Iterator[None]:
    """Replaces the creation of commits for a while: `replaced(opened, create)`, where `create` makes the version after `opened`."""
    original = commit_files.create_commit
    with monkeypatch.context() as patched:
        patched.setattr(commit_files, "create_commit", lambda opened, *given: replaced(opened, lambda: original(opened, *given)))
        yield
