"""What a worker needs to decode batches. Spark pickles it to executors."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.types import StructType

from pyspark_waltz.decode.settings import DecodeSettings
from waltz_delta.decode.row_checks import Checks

__all__ = ["DecodingPlan"]


@dataclass(frozen=True, slots=True)
class DecodingPlan:
    """`kept`: columns that pass through. `declared`: the columns to decode. `result`: all columns of a result, in order. `schema`: of the data, if
    its format has one."""

    kept: tuple[str, ...]
    declared: StructType
    result: StructType
    settings: DecodeSettings
    zone: str
    checks: Checks
    schema: bytes | None
