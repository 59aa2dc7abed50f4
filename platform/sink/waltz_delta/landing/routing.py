"""Selects the transactions of an output by their header."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from waltz_delta.settings import RouteSettings

__all__ = ["routed", "unrouted"]


def routed(rows: DataFrame, route: RouteSettings | None) -> DataFrame:
    """The rows of this route; without a route, all rows."""
    return rows if route is None else rows.where(f.col("header").isin(list(route.headers)))


def unrouted(routes: Iterable[RouteSettings | None]) -> Column | None:
    """Whether no route accepts a row; None if one route accepts all."""
    headers: set[int] = set()
    for route in routes:
        if route is None:
            return None
        headers |= set(route.headers)
    return ~f.coalesce(f.col("header").isin(sorted(headers)), f.lit(False))
