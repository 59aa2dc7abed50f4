"""Example queries of the tables: plain SQL, the same in Spark. Run here without a JVM, by the query engine inside `deltalake`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

__all__ = ["QUERIES", "Query", "ask"]


class Query(NamedTuple):
    question: str
    sql: str


QUERIES = (
    Query(
        "Is the log in the table exactly once?",
        "SELECT partition, count(*) AS transactions, count(DISTINCT transaction_id) AS distinct_ids, max(transaction_id) AS last_id\n"
        "FROM flight_legs GROUP BY partition ORDER BY partition",
    ),
    Query(
        "Which aircraft of the two tables differ?",
        "SELECT count(*) AS aircraft_that_differ\n"
        "FROM aircraft a FULL JOIN (SELECT tail, count(*) AS legs, max(leg) AS last_leg, sum(distance) AS distance\n"
        "                           FROM flight_legs WHERE tail IS NOT NULL GROUP BY tail) f ON a.tail = f.tail\n"
        "WHERE a.legs IS NULL OR f.legs IS NULL OR a.legs <> f.legs OR a.legs <> f.last_leg OR a.distance <> f.distance",
    ),
    Query(
        "Which aircraft flew the most legs, and from how many airports?",
        "SELECT a.tail, a.legs, a.distance, a.minutes, count(DISTINCT f.origin) AS airports\n"
        "FROM aircraft a JOIN flight_legs f ON f.tail = a.tail\n"
        "GROUP BY a.tail, a.legs, a.distance, a.minutes ORDER BY a.legs DESC, a.tail LIMIT 5",
    ),
    Query(
        "How many miles left each airport?",
        "SELECT origin, count(*) AS flights, count(DISTINCT tail) AS aircraft, sum(distance) AS miles\n"
        "FROM flight_legs GROUP BY origin ORDER BY origin",
    ),
)


def ask(tables: Mapping[str, Path]) -> Iterator[tuple[Query, list[str], list[list[Any]]]]:
    """Runs every query over the Delta tables at these paths; yields it with the column names and rows of its answer."""
    builder = QueryBuilder()
    for name, path in tables.items():
        builder = builder.register(name, DeltaTable(str(path)))
    for query in QUERIES:
        answer = pa.table(builder.execute(query.sql).read_all())
        yield query, answer.column_names, [list(row.values()) for row in answer.to_pylist()]
