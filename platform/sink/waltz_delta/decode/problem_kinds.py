"""What reasons have in common: the same without the value that each of them quotes, so that a report can count them. Plans only."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as f

__all__ = ["kind_of_problem"]

_FORMAT = r"is not one JSON object|is not an Avro record of the declared schema|is not a Protobuf message [^:]+"
_TYPE = rf"(?s)^({_FORMAT}|.+? is not [A-Z_0-9<>,:()]+): .*$"
_VALUE = r"(?s) is the (string|number|time) .*?: "


def kind_of_problem(problem: Column) -> Column:
    """`leg is not INT` of `leg is not INT: two`, and the same for each reason that quotes a value (`pyspark_waltz.decode`)."""
    return f.regexp_replace(f.regexp_replace(problem, _TYPE, "$1"), _VALUE, " is the $1: ")
