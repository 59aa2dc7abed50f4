"""Names and paths as Spark SQL reads them, whatever letters they have."""

from __future__ import annotations

__all__ = ["quoted", "table_at"]


def quoted(name: str) -> str:
    """The name of a column, of which a dot is part."""
    return f"`{name.replace('`', '``')}`"


def table_at(path: str) -> str:
    """The Delta table at the path."""
    return f"delta.{quoted(path)}"
