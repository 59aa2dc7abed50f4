"""`waltz pipeline check`: the errors in pipeline files, or which tables they fill with which columns. Reads only the files.

A table's columns follow from the declaration, or from the schema of Avro or Protobuf data, unless SQL is in it; only Spark can derive the columns
of a select list (`--spark`). Existing tables, clusters and checkpoints are not inspected here; `ingest` refuses a declaration that does not fit them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any  # JSON values
from urllib.parse import urlsplit

from pyspark_waltz.decode.formats import own_columns, read_schema
from waltz_delta.engine.allowed import TableShape, refusal_of_new, refusal_of_path
from waltz_delta.landing.upsert import UpsertRule
from waltz_delta.launch import enter_environment
from waltz_delta.pipelines.pipeline import PipelineSettings
from waltz_delta.pipelines.pipeline_file import Problem, check_pipeline_file, pipeline_files
from waltz_delta.settings import LandingSettings, OutputSettings, TargetSettings
from waltz_log.cli.printing import print_data
from waltz_log.errors import InvalidRequest, InvalidSetting
from waltz_log.exit_codes import OK, USAGE
from waltz_log.outside_text import printable

__all__ = ["declared_columns", "declared_engine", "print_schema", "run"]

LOG_COLUMNS = (("partition", "INT"), ("transaction_id", "BIGINT"), ("timestamp", "TIMESTAMP"), ("header", "INT"))

_FIELD = re.compile(r"`?(?P<name>[^\s`:]+)`?\s*:?\s*(?P<kind>.+?)(?:\s+NOT\s+NULL)?(?:\s+COMMENT\s.*)?", re.IGNORECASE | re.DOTALL)

Columns = list[tuple[str, str]]


def run(files: list[Path], *, spark: bool, output: str) -> int:
    found = {path: check_pipeline_file(path) for path in pipeline_files(files)}
    if not found:
        raise InvalidRequest(reason=f"no .yaml file in {', '.join(str(path) for path in files)}")
    pipelines = {path: settings for path, (settings, _) in found.items() if settings is not None}
    problems = {path: list(wrong) for path, (_, wrong) in found.items()}
    _refuse_shared(pipelines, problems)
    schemas = {}
    for path, settings in pipelines.items():
        try:
            schemas[path] = _declared(settings)
        except InvalidSetting as error:  # a schema file
            problems[path].append(Problem(1, f"decode.{error.name}", error.reason, error.nearest))
            schemas[path] = {}
    if spark and pipelines:
        for path, columns in _asked_of_spark(pipelines, problems):
            schemas[path] = dict(columns)
    if output == "table":
        _print_table(pipelines, problems, schemas)
    else:
        print_data(_as_data(pipelines, problems, schemas), output)
    return USAGE if any(problems.values()) else OK


def print_schema() -> int:
    print(json.dumps(PipelineSettings.model_json_schema(), indent=2))
    return OK


def _declared(settings: PipelineSettings) -> dict[str, Columns | None]:
    plain = not settings.options.include_metadata and not settings.options.by_topic
    return {output.target.table: declared_columns(output) if plain else None for output in settings.outputs}


def declared_columns(output: OutputSettings) -> Columns | None:
    """Names and types as declared; None if only Spark can derive them. Raises `InvalidSetting` for a schema that cannot be read or is none."""
    schema = read_schema(output.decode)
    own = [] if schema is None else own_columns(output.decode, schema).fields
    if output.projection.select is not None:
        return None
    if output.target.mode != "append":
        return None  # deletes and history add columns of their own
    if own:
        return [*LOG_COLUMNS, *((field.name, _shown(field.dataType.simpleString())) for field in own)]
    if output.decode.columns is None:
        return [*LOG_COLUMNS, ("data", "BINARY")]
    return [*LOG_COLUMNS, *_fields(output.decode.columns)]


def _fields(ddl: str) -> Iterator[tuple[str, str]]:
    """Parses `a INT NOT NULL, b STRUCT<c: INT, d: STRING>` into pairs of name and type."""
    depth, start = 0, 0
    for at, letter in enumerate([*ddl, ","]):
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and depth == 0:
            if field := _FIELD.fullmatch(ddl[start:at].strip()):
                yield field["name"], _shown(field["kind"])
            start = at + 1


def _shown(kind: str) -> str:
    return kind.upper() if "<" not in kind else kind


def _refuse_shared(pipelines: dict[Path, PipelineSettings], problems: dict[Path, list[Problem]]) -> None:
    """One job may run all of the files, so no name, checkpoint or table may appear twice."""
    used: dict[tuple[str, str], Path] = {}
    for path, settings in pipelines.items():
        for what, value in (("name", settings.name), ("checkpoint", settings.checkpoint), *(("table", table) for table in settings.tables)):
            other = used.setdefault((what, value.rstrip("/")), path)
            if other != path:
                problems[path].append(Problem(1, what, f"{value} is that of {other} too; every pipeline has its own"))


def _asked_of_spark(
    pipelines: dict[Path, PipelineSettings], problems: dict[Path, list[Problem]]
) -> Iterator[tuple[Path, Iterator[tuple[str, Columns]]]]:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    from pyspark_waltz.schema import schema_of
    from waltz_delta.landing.landing import resulting_schemas

    enter_environment()
    builder = SparkSession.builder.appName("waltz pipeline check").master("local[1]").config("spark.ui.enabled", "false")
    session = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    try:
        for path, settings in pipelines.items():
            try:
                rows = schema_of(include_metadata=settings.options.include_metadata, by_topic=settings.options.by_topic)
                schemas = resulting_schemas(session, settings, rows)
            except (PySparkException, InvalidSetting) as error:
                problems[path].append(Problem(1, "outputs", str(error).strip().split("\n")[0]))
            else:
                yield (
                    path,
                    ((table, [(field.name, field.dataType.simpleString().upper()) for field in schema]) for table, schema in schemas.items()),
                )
    finally:
        session.stop()


def declared_engine(target: TargetSettings) -> str:
    """The engine that writes a table, and why it is Spark's. A table that exists decides only when the pipeline starts."""
    if target.mode == "history":
        return "spark: mode history"
    if target.engine == "spark":
        return "spark"
    if target.mode == "upsert" and (reason := _refusal_of_upsert(target)):
        return f"spark: {reason}"
    new = TableShape({"type": "struct", "fields": []}, (), target.properties)
    scheme = urlsplit(target.table).scheme or "file"
    reason = refusal_of_path(scheme, target.table) or refusal_of_new(new, target.layout.cluster_by)
    return "arrow" if reason is None else f"spark: {reason}"


def _refusal_of_upsert(target: TargetSettings) -> str | None:
    if target.layout.partition_by:
        return "the Arrow engine does not merge into partitioned tables"
    if (urlsplit(target.table).scheme or "file") != "file":
        return "the Arrow engine merges in directories of this machine only"
    return UpsertRule(target.keys, target.sequence, target.deletes, None).spark_only


def _rows(settings: LandingSettings, schemas: dict[str, Columns | None]) -> Iterator[tuple[str, str, str, str]]:
    for output in settings.outputs:
        columns = schemas.get(output.target.table)
        shown = ", ".join(f"{name} {kind}" for name, kind in columns) if columns is not None else "needs Spark: --spark"
        yield output.target.table, output.target.mode, declared_engine(output.target), shown
    if settings.dead_letters is not None:
        yield settings.dead_letters.table, "dead letters", "spark", ""


def _print_table(
    pipelines: dict[Path, PipelineSettings], problems: dict[Path, list[Problem]], schemas: dict[Path, dict[str, Columns | None]]
) -> None:
    from rich.console import Console
    from rich.table import Table

    for wrong, lines in problems.items():
        for problem in lines:
            print(f"{printable(str(wrong))}:{problem}")
    table = Table("pipeline", "table", "mode", "engine", "columns", box=None)
    for path, settings in pipelines.items():
        if not problems[path]:
            for row in _rows(settings, schemas[path]):
                table.add_row(settings.name, *row)
    if table.row_count:
        Console().print(table)


def _as_data(
    pipelines: dict[Path, PipelineSettings], problems: dict[Path, list[Problem]], schemas: dict[Path, dict[str, Columns | None]]
) -> list[dict[str, Any]]:
    shown = []
    for path, wrong in problems.items():
        settings = pipelines.get(path)
        shown.append(
            {
                "file": str(path),
                "problems": [{"line": p.line, "where": p.where, "reason": p.reason, "nearest": p.nearest} for p in wrong],
                "pipeline": settings.name if settings is not None else None,
                "tables": {name: columns and dict(columns) for name, columns in schemas.get(path, {}).items()},
                "engines": {} if settings is None else {output.target.table: declared_engine(output.target) for output in settings.outputs},
            }
        )
    return shown
