"""Tables of the Arrow engine without Spark, and calls of `deltalake` that a test replaces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from verification.lake import log_table
from verification.lake.log_table import MARK, METADATA, SHAPE, append, begin, commit, files
from waltz_delta.engine.arrow_table import ArrowTable

__all__ = ["MARK", "METADATA", "SHAPE", "append", "begin", "commit", "files", "handle_call", "held", "opened"]


def opened(path: Path | str, storage: Mapping[str, str] | None = None) -> ArrowTable:
    return log_table.opened(str(path), storage)


def held(path: Path) -> list[int]:
    """The ids in the table, as another reader finds them."""
    return sorted(DeltaTable(str(path)).to_pyarrow_table()["id"].to_pylist())


@contextmanager
def creating(monkeypatch: Any, replaced: Callable[[Callable[[], None]], None]) -> Iterator[None]:
    """Replaces the creation of commits for a while: `replaced(create)`."""
    with handle_call(monkeypatch, "create_write_transaction", lambda original, *given, **named: replaced(lambda: original(*given, **named))):
        yield


@contextmanager
def handle_call(monkeypatch: Any, name: str, replaced: Any) -> Iterator[None]:
    """Replaces a method of `DeltaTable` for a while: `replaced(original, table, *arguments, **named)`."""
    original = getattr(DeltaTable, name)
    with monkeypatch.context() as patched:
        patched.setattr(DeltaTable, name, lambda table, *given, **named: replaced(original, table, *given, **named))
        yield
