"""The options of a table created with `CREATE TABLE t USING waltz OPTIONS (...)`, from the statement to the queries of the table. Pure.

Spark 4.2 passes each option of a new table twice, plain and with the prefix `option.`, together with the table's properties. It passes none of them
to a query of the table; the query receives the table's schema and the options of `WITH (...)`. So the schema carries the table's options, as metadata
of its first column.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from pyspark.sql.types import StructField, StructType

from waltz_log.errors import InvalidSetting

__all__ = ["of_a_table", "options_of", "plain", "remember"]

PREFIX = "option."
KEY = "waltz.options"

_NO_OPTIONS = (
    "is required: the addresses of log servers, host:port; a table has the options of its CREATE TABLE only if the statement lists no columns, "
    "because the source supplies them"
)
_NO_WITH = (
    "cannot be in WITH (...) of a query: Spark gives the rows of the first reference to every other reference of the table; create another table"
)
_NO_FILTERS = "cannot be true for a table: two references of the table in one query would share one filter; use partitions and startingTransactionIds"


def of_a_table(options: Mapping[str, str]) -> bool:
    """Whether these are the options and properties of a table that is being created."""
    return any(key.lower() == "provider" or key.lower().startswith(PREFIX) for key in options)


def plain(options: Mapping[str, str]) -> dict[str, str]:
    """Each option once, without the table's properties. Raises `InvalidSetting` for an option with two different values."""
    if not of_a_table(options):
        return dict(options)
    found = {key.lower().removeprefix(PREFIX): value for key, value in options.items() if key.lower().startswith(PREFIX)}
    for key, value in options.items():
        twin = found.get(key.lower(), value)
        if twin != value:
            raise InvalidSetting(name=key.lower(), reason=f"is given twice with different values: {twin!r} and {value!r}", nearest=None)
    if found.get("filterpushdown", "false").strip().lower() == "true":
        raise InvalidSetting(name="filterPushdown", reason=_NO_FILTERS, nearest=None)
    return found


def remember(schema: StructType, options: Mapping[str, str]) -> StructType:
    """The schema, with the options in it."""
    first = schema.fields[0]
    carrier = StructField(first.name, first.dataType, first.nullable, {**first.metadata, KEY: json.dumps(dict(options), sort_keys=True)})
    return StructType([carrier, *schema.fields[1:]])


def options_of(schema: StructType, given: Mapping[str, str]) -> dict[str, str]:
    """The options of the table if the schema is a table's, otherwise those given. Raises `InvalidSetting` if a query of a table names options, or if
    there is no address of a cluster."""
    carried = next((field.metadata[KEY] for field in schema.fields if KEY in field.metadata), None)
    if carried is not None:
        if given:
            raise InvalidSetting(name=min(given), reason=_NO_WITH, nearest=None)
        found: dict[str, str] = json.loads(carried)
        return found
    if not any(key.lower() == "cluster" for key in given):
        raise InvalidSetting(name="cluster", reason=_NO_OPTIONS, nearest=None)
    return dict(given)
