"""`waltz pipeline check`: the errors in pipeline files, or which tables they fill with which columns. Reads only the files.

A table's columns follow from the declaration, or from the schema of Avro or Protobuf data, unless SQL is in it; only Spark can derive the columns
of a select list (`--spark`). Existing tables, clusters and checkpoints are not inspected here; `ingest` refuses a declaration that does not fit them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any  # JSON values
from urllib.parse import urlsplit

from pyspark.sql.types import StructType

from pyspark_waltz.decode.formats import own_columns, read_schema
from pyspark_waltz.schema import SCHEMA
from waltz_delta.base.log_store import LOCAL
from waltz_delta.engine.allowed import refusal_of_path
from waltz_delta.engine.store_options import refusal_of_storage
from waltz_delta.landing.landing import sink_for
from waltz_delta.launch import enter_environment
from waltz_delta.pipelines.declared_types import declared_fields, declared_schema
from waltz_delta.pipelines.pipeline import PipelineSettings
from waltz_delta.pipelines.pipeline_file import Problem, check_pipeline_file, pipeline_files
from waltz_delta.settings import DeadLetterSettings, LandingSettings, OutputSettings
from waltz_log.cli.printing import print_data
from waltz_log.errors import InvalidRequest, InvalidSetting
from waltz_log.exit_codes import OK, USAGE
from waltz_log.outside_text import printable

__all__ = ["declared_columns", "declared_engine", "print_schema", "run", "table_schema"]

BY_SPARK = "needs Spark: --spark"

LOG_COLUMNS = (("partition", "INT"), ("transaction_id", "BIGINT"), ("timestamp", "TIMESTAMP"), ("header", "INT"))

Columns = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class _Found:
    """What is known of a table of a pipeline. `columns`: None if only Spark can derive them."""

    columns: Columns | None
    engine: str


def run(files: list[Path], *, spark: bool, output: str) -> int:
    found = {path: check_pipeline_file(path) for path in pipeline_files(files)}
    if not found:
        raise InvalidRequest(reason=f"no .yaml file in {', '.join(str(path) for path in files)}")
    pipelines = {path: settings for path, (settings, _) in found.items() if settings is not None}
    problems = {path: list(wrong) for path, (_, wrong) in found.items()}
    _refuse_shared(pipelines, problems)
    schemas: dict[Path, dict[str, _Found]] = {}
    for path, settings in pipelines.items():
        try:
            schemas[path] = _declared(settings)
        except InvalidSetting as error:  # a schema file
            problems[path].append(Problem(1, f"decode.{error.name}", error.reason, error.nearest))
            schemas[path] = {}
    if spark and pipelines:
        schemas |= _asked_of_spark(pipelines, problems)
    _refuse_engines(pipelines, problems, schemas)
    if output == "table":
        _print_table(pipelines, problems, schemas)
    else:
        print_data(_as_data(pipelines, problems, schemas), output)
    return USAGE if any(problems.values()) else OK


def print_schema() -> int:
    print(json.dumps(PipelineSettings.model_json_schema(), indent=2))
    return OK


def _declared(settings: PipelineSettings) -> dict[str, _Found]:
    plain = not settings.options.include_metadata and not settings.options.by_topic
    return {
        output.target.table: _Found(declared_columns(output) if plain else None, _engine(settings, output, table_schema(output)))
        for output in settings.outputs
    }


def _engine(settings: LandingSettings, output: OutputSettings, schema: StructType | None) -> str:
    return declared_engine(output, schema, dead_letters=settings.dead_letters is not None)


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
    return [*LOG_COLUMNS, *((name, _shown(kind)) for name, kind in declared_fields(output.decode.columns))]


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


def _refuse_engines(pipelines: dict[Path, PipelineSettings], problems: dict[Path, list[Problem]], schemas: dict[Path, dict[str, _Found]]) -> None:
    """With `engine: arrow` a job refuses what only Spark's engine writes, so the file has a problem."""
    for path, settings in pipelines.items():
        chosen = [(f"outputs.{at}.target", output.target.engine, output.target.table) for at, output in enumerate(settings.outputs)]
        engines = {table: found.engine for table, found in schemas[path].items()}
        if settings.dead_letters is not None:
            chosen.append(("dead_letters", settings.dead_letters.engine, settings.dead_letters.table))
            engines[settings.dead_letters.table] = _engine_of_letters(settings.dead_letters)
        for where, wanted, table in chosen:
            engine, _, reason = engines.get(table, "").partition(": ")
            if wanted == "arrow" and engine == "spark":
                problems[path].append(Problem(1, f"{where}.engine", f"is arrow, and {reason}: table={table}"))


def _asked_of_spark(pipelines: dict[Path, PipelineSettings], problems: dict[Path, list[Problem]]) -> dict[Path, dict[str, _Found]]:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    from pyspark_waltz.schema import schema_of
    from waltz_delta.landing.landing import resulting_schemas

    enter_environment()
    builder = SparkSession.builder.appName("waltz pipeline check").master("local[1]").config("spark.ui.enabled", "false")
    session = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    found: dict[Path, dict[str, _Found]] = {}
    try:
        for path, settings in pipelines.items():
            try:
                rows = schema_of(include_metadata=settings.options.include_metadata, by_topic=settings.options.by_topic)
                schemas = resulting_schemas(session, settings, rows)
            except (PySparkException, InvalidSetting) as error:
                problems[path].append(Problem(1, "outputs", str(error).strip().split("\n")[0]))
            else:
                outputs = {output.target.table: output for output in settings.outputs}
                found[path] = {
                    table: _Found(
                        [(field.name, field.dataType.simpleString().upper()) for field in schema], _engine(settings, outputs[table], schema)
                    )
                    for table, schema in schemas.items()
                }
    finally:
        session.stop()
    return found


def declared_engine(output: OutputSettings, schema: StructType | None, *, dead_letters: bool) -> str:
    """The engine that writes a table, and why it is Spark's, as the job chooses it for a new table. A table that exists decides only when the
    pipeline starts. `schema`: the columns of the table; None if only Spark can derive them."""
    target = output.target
    if target.engine == "spark":
        return "spark"
    sink = sink_for(output, "", dead_letters=dead_letters)
    place = urlsplit(target.table).scheme or LOCAL
    reason = refusal_of_path(place, target.table) or refusal_of_storage(place, target.table, target.storage) or sink.engine_refusal(schema, {})
    if reason is not None:
        return f"spark: {reason}"
    return "arrow" if schema is not None else f"arrow: if its columns allow it, {BY_SPARK}"


def _engine_of_letters(letters: DeadLetterSettings) -> str:
    if letters.engine == "spark":
        return "spark"
    place = urlsplit(letters.table).scheme or LOCAL
    reason = refusal_of_path(place, letters.table) or refusal_of_storage(place, letters.table, letters.storage)
    return "arrow" if reason is None else f"spark: {reason}"


def table_schema(output: OutputSettings) -> StructType | None:
    """The columns of the table in types of Spark; None if only Spark can derive them. Raises `InvalidSetting` for a schema that cannot be read or is
    none."""
    schema = read_schema(output.decode)
    if output.projection.select is not None:
        return None
    if schema is not None:
        found: StructType | None = own_columns(output.decode, schema)
    elif output.decode.columns is not None:
        found = declared_schema(output.decode.columns)
    else:
        found = StructType([SCHEMA["data"]])
    return None if found is None else StructType([*(field for field in SCHEMA.fields if field.name != "data"), *found.fields])


def _rows(settings: LandingSettings, tables: dict[str, _Found]) -> Iterator[tuple[str, str, str, str]]:
    for output in settings.outputs:
        found = tables[output.target.table]
        shown = ", ".join(f"{name} {kind}" for name, kind in found.columns) if found.columns is not None else BY_SPARK
        yield output.target.table, output.target.mode, found.engine, shown
    if settings.dead_letters is not None:
        yield settings.dead_letters.table, "dead letters", _engine_of_letters(settings.dead_letters), ""


def _print_table(pipelines: dict[Path, PipelineSettings], problems: dict[Path, list[Problem]], schemas: dict[Path, dict[str, _Found]]) -> None:
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
    pipelines: dict[Path, PipelineSettings], problems: dict[Path, list[Problem]], schemas: dict[Path, dict[str, _Found]]
) -> list[dict[str, Any]]:
    shown = []
    for path, wrong in problems.items():
        settings = pipelines.get(path)
        shown.append(
            {
                "file": str(path),
                "problems": [{"line": p.line, "where": p.where, "reason": p.reason, "nearest": p.nearest} for p in wrong],
                "pipeline": settings.name if settings is not None else None,
                "tables": {name: found.columns and dict(found.columns) for name, found in schemas.get(path, {}).items()},
                "engines": {name: found.engine for name, found in schemas.get(path, {}).items()},
            }
        )
    return shown
