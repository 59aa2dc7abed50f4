"""Reads that decode JSON where they receive it, in the executor's Python: the option `columns`.

A row has the columns of the log without `data`, the declared columns, then `data` and `problem`, which are null unless the transaction does not
decode. So undecoded bytes cross to the JVM only for those. Nothing is dropped and nothing fails: the query decides what a problem means. With
`undecodable=fail` the read itself fails, and the last two columns do not exist: Spark then copies no row to remove them.

Spark parses the declaration, because the source runs in processes without a JVM. To Spark every declared column may be null, as it is where a
transaction has a problem; NOT NULL makes a missing one a problem."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from pyspark_waltz.decode.declarations import check_names, holds_variant
from pyspark_waltz.decode.problems import DATA, PROBLEM
from pyspark_waltz.decode.required import nullable
from pyspark_waltz.decode.settings import DecodeSettings
from waltz_log.errors import InvalidSetting

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Decoding", "declared", "decoded_schema"]

_TOKEN: Final = re.compile(r"`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|\bNOT\s+NULL\b|[\w.]+|[^\s\w]", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Decoding:
    """`columns`: the declared ones, with the required ones among them. `zone`: of times without an offset. Spark pickles it to executors."""

    columns: StructType
    settings: DecodeSettings
    zone: str
    keep: bool = True
    """Whether rows say what does not decode. Otherwise the read fails at it."""

    def check(self) -> None:
        """Raises `InvalidSetting` if a setting names a column that is not declared, or if JSON cannot hold a type."""
        check_names(self.settings, self.columns)
        if holds_variant(self.columns):
            raise InvalidSetting(name="columns", reason="hold a VARIANT; declare STRING, and use parse_json in the query", nearest=None)
        self._decoder()

    def decoded(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of such a read, from the source's own."""
        return map(self._decoder(), batches)

    def _decoder(self) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        from pyspark_waltz.decode.read_batches import ReadDecoder

        return ReadDecoder(self.columns, self.settings, self.zone, keep=self.keep).decode


def decoded_schema(log: StructType, columns: str, *, keep: bool = True) -> StructType | str:
    """The schema of such a read. `log`: the source's own columns. `columns`: as SQL, which Spark will parse, or as the JSON of a Spark schema.
    `keep`: as in `Decoding`."""
    own = [field for field in log.fields if field.name != DATA]
    if columns.lstrip().startswith("{"):
        found = [StructField(field.name, nullable(field.dataType), metadata=field.metadata) for field in _of_json(columns).fields]
        return StructType([*own, *found, *([StructField(DATA, BinaryType()), StructField(PROBLEM, StringType())] if keep else [])])
    names = [f"{field.name} {field.dataType.simpleString()}" for field in own]
    return ", ".join([*names, _parts(columns)[0], *([f"{DATA} BINARY", f"{PROBLEM} STRING"] if keep else [])])


def declared(schema: StructType, log: StructType, columns: str, *, keep: bool = True) -> StructType:
    """The declared columns of a read, as Spark parsed its schema. `keep`: as in `Decoding`. Raises `InvalidSetting` for a column with the name
    of another one."""
    if columns.lstrip().startswith("{"):
        found = _of_json(columns)
    else:
        required = _parts(columns)[1]
        fields = schema.fields[len(log.fields) - 1 : -2 if keep else None]
        found = StructType([StructField(field.name, field.dataType, field.name.lower() not in required, field.metadata) for field in fields])
    reserved = {*map(str.lower, log.names), PROBLEM}
    for name in found.names:
        if name.lower() in reserved:
            advice = f'declare another name, and its field in decode: {{"fields": {{"{name}_in_data": "{name}"}}}}'
            raise InvalidSetting(name="columns", reason=f"{name} is already a column of the source; {advice}", nearest=None)
    return found


def _of_json(columns: str) -> StructType:
    try:
        return StructType.fromJson(json.loads(columns))
    except (ValueError, KeyError, TypeError):
        raise InvalidSetting(name="columns", reason="are neither SQL columns nor the JSON of a Spark schema", nearest=None) from None


def _parts(columns: str) -> tuple[str, frozenset[str]]:
    """The declaration without NOT NULL, and the names of the columns that had it, in lower case."""
    kept, required, depth, name, before = [], set(), 0, "", ","
    for found in _TOKEN.finditer(columns):
        token = found.group()
        if before == "," and depth == 0:
            name = token.strip("`").replace("``", "`")
        if re.fullmatch(r"NOT\s+NULL", token, re.IGNORECASE):
            if depth:
                raise InvalidSetting(name="columns", reason="have NOT NULL within a type; give the JSON of a Spark schema instead", nearest=None)
            required.add(name.lower())
        else:
            depth += (token in "<(") - (token in ">)")
            kept.append(found.group())
        before = token
    return " ".join(kept), frozenset(required)
