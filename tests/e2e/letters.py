"""Rows of a log that do not decode, tables that they miss, and drivers that die between two commits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyspark_waltz.source import SCHEMA
from tests.e2e.committing import replace_commits
from waltz_delta.settings import LandingSettings

KEY = "a9f9d1de-5f7c-4a4e-9d39-50d9bd5c4c11"
Row = tuple[int, int, int, bytes]
PUT, DELETE, STRAY = 1, 9, 7


def raw(spark: Any, rows: list[Row]) -> Any:
    made = spark.createDataFrame([(p, at, None, header, bytearray(data)) for p, at, header, data in rows], SCHEMA)
    return made.selectExpr("partition", "transaction_id", "timestamp_seconds(transaction_id) AS timestamp", "header", "data")


def landing(path: Path, *, columns: str = "k STRING NOT NULL, n INT", **changes: Any) -> LandingSettings:
    """Everything appended, and the newest row of each key; deletes by header."""
    decode = {"format": "json", "columns": columns}
    append = {"target": {"table": str(path / "all")}, "decode": decode, "projection": {"select": "k, n"}, "route": {"headers": [PUT]}}
    keyed = {"mode": "upsert", "keys": ["k"], "deletes": {"headers": [DELETE]}}
    upsert = {"target": {"table": str(path / "keyed"), **keyed}, "decode": decode, "route": {"headers": [PUT, DELETE]}}
    return LandingSettings(**{"outputs": [append, upsert], "dead_letters": {"table": str(path / "dead")}, "unrouted": "dead_letter", **changes})


ROWS: list[Row] = [
    (0, 0, PUT, b'{"k": "a", "n": 1}'),
    (0, 1, PUT, b'{"k": "a", "n": "two"}'),
    (0, 2, STRAY, b'{"k": "s", "n": "7"}'),
    (0, 3, PUT, b'{"k": "b", "n": "three"}'),
    (0, 4, DELETE, b'{"k": "b"}'),
    (1, 0, PUT, b"\xff"),
    (1, 1, PUT, b'{"k": "c", "n": 4} and more'),
]


def table(spark: Any, path: Path, *columns: str) -> list[tuple[Any, ...]]:
    return table_rows(spark.read.format("delta").load(str(path)), *columns)


def table_rows(found: Any, *columns: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in found.select(*columns).collect()), key=repr)


def letters(spark: Any, path: Path) -> list[tuple[Any, ...]]:
    found = table(spark, path / "dead", "target", "partition", "transaction_id", "reason")
    return [(Path(target).name, *rest) for target, *rest in found]


class Died(BaseException):
    pass


def one_commit_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on a driver dies before its second commit."""
    made: list[int] = []

    def dying(original: Callable[..., int]) -> Callable[..., int]:
        def commit(*arguments: Any, **named: Any) -> int:
            if made:
                raise Died
            made.append(1)
            return original(*arguments, **named)

        return commit

    replace_commits(monkeypatch, dying)
