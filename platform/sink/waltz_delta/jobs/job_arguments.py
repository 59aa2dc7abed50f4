"""The command line of the streaming jobs: their arguments, and one clear sentence for each wrong one. Starts nothing.

The arguments become pipelines, so that a job from arguments and one from files run the same code."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, get_args  # Any: argparse's keyword arguments
from uuid import UUID

from pyspark_waltz.options import SourceOptions
from waltz_delta.engine.choice import EngineChoice
from waltz_delta.pipelines.metrics_port import METRICS_HOST, MetricsSettings
from waltz_delta.pipelines.pipeline import PipelineSettings, RestartSettings, checked_trigger
from waltz_delta.pipelines.pipeline_file import load_pipeline, pipeline_files
from waltz_delta.settings import (
    DeadLetterSettings,
    DecodeSettings,
    OutputSettings,
    ProjectionSettings,
    RouteSettings,
    TargetSettings,
    TimestampUnit,
)
from waltz_log.errors import InvalidSetting

__all__ = ["JobArguments", "JobParser", "parse_arguments"]

_OF_A_FILE = (
    "cluster",
    "table",
    "checkpoint",
    "partitions",
    "starting",
    "max_transactions_per_trigger",
    "engine",
    "schema",
    "timestamp_unit",
    "earliest_timestamp",
    "latest_timestamp",
    "numeric_strings",
    "headers",
    "dead_letters",
    "former_cluster",
    "undecodable",
    "where",
    "select",
    "option",
    "subscriber",
    "restart_attempts",
)
"""Arguments whose settings are in a pipeline file."""
_OF_A_SCHEMA = ("timestamp_unit", "earliest_timestamp", "latest_timestamp", "numeric_strings")


@dataclass(frozen=True, slots=True)
class JobArguments:
    pipelines: tuple[PipelineSettings, ...]
    metrics: MetricsSettings


class JobParser(argparse.ArgumentParser):
    """`parse` raises `InvalidSetting` with the nearest known argument. Every job has `--verbose`."""

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        self.add_argument("--verbose", action="store_true", help="after a failure, also print the full error")
        found, unknown = self.parse_known_args(arguments)
        if unknown:
            known = [name for action in self._actions for name in action.option_strings if name.startswith("--")]
            raise InvalidSetting.unknown(unknown[0].split("=")[0], known, what="argument")
        return found

    def error(self, message: str) -> NoReturn:
        matched = re.fullmatch(r"argument ([^:]+): (.*)", message, re.DOTALL)
        raise InvalidSetting(name=matched[1] if matched else self.prog, reason=matched[2] if matched else message, nearest=None)


def parse_arguments(job: str, arguments: Sequence[str], *, upsert: bool) -> JobArguments:
    """Raises `InvalidSetting`; for `--help` prints help and exits with 0."""
    found = _parser(job, upsert).parse(arguments)
    files = [] if upsert else [Path(name) for name in found.pipeline]
    pipelines = _from_files(files, found) if files else (_from_arguments(job, found, upsert=upsert),)
    file = Path(found.metrics_file) if found.metrics_file else None
    metrics = MetricsSettings(found.metrics_port, file, found.metrics_host, tuple(found.metrics_client), found.insecure)
    return JobArguments(pipelines, metrics)


def _from_files(files: list[Path], found: argparse.Namespace) -> tuple[PipelineSettings, ...]:
    for name in _OF_A_FILE:
        if getattr(found, name) not in (None, []):
            raise InvalidSetting(name=f"--{name.replace('_', '-')}", reason="is set in the pipeline file", nearest=None)
    pipelines = tuple(load_pipeline(path) for path in pipeline_files(files))
    if not pipelines:
        raise InvalidSetting(name="--pipeline", reason=f"no .yaml file in {', '.join(str(path) for path in files)}", nearest=None)
    if found.trigger is None:
        return pipelines
    return tuple(settings.model_copy(update={"trigger": _trigger(found.trigger)}) for settings in pipelines)


def _from_arguments(job: str, found: argparse.Namespace, *, upsert: bool) -> PipelineSettings:
    for name in ("cluster", "table", "checkpoint", *(("keys",) if upsert else ())):
        if not getattr(found, name):
            raise InvalidSetting(name=f"--{name}", reason="is required", nearest=None)
    source = {"cluster": found.cluster}
    if found.starting:  # a word for all partitions excludes a time, which --option may give
        source["startingTransactionIds"] = found.starting
    for text in found.option:
        name, equals, value = text.partition("=")
        if not equals or name.lower() in ("cluster", "startingtransactionids"):
            raise InvalidSetting(
                name="--option", reason=f"must be name=value, for an option that has no argument of its own, got {text!r}", nearest=None
            )
        source[name] = value
    for name, value in (("partitions", found.partitions), ("maxTransactionsPerTrigger", found.max_transactions_per_trigger)):
        if value is not None:
            source[name] = value
    SourceOptions.parse(source).check_use("stream")
    keys = tuple(name.strip() for name in found.keys.split(",") if name.strip()) if upsert else ()
    engine: EngineChoice = found.engine or "auto"
    if upsert:
        target = TargetSettings(table=found.table, engine=engine, mode="upsert", keys=keys, sequence=found.sequence)
    else:
        target = TargetSettings(table=found.table, engine=engine)
    output = OutputSettings(
        target=target,
        decode=_decode(found),
        route=RouteSettings(headers=_headers(found.headers)) if found.headers is not None else None,
        projection=ProjectionSettings(where=found.where, select=found.select),
    )
    if found.undecodable == "dead_letter" and not found.dead_letters:
        raise InvalidSetting(name="--undecodable", reason="dead_letter needs --dead-letters, the path of their table", nearest=None)
    if found.restart_attempts is not None and found.restart_attempts < 0:
        raise InvalidSetting(name="--restart-attempts", reason=f"must be 0 or more, got {found.restart_attempts}", nearest=None)
    restart = RestartSettings() if found.restart_attempts is None else RestartSettings(attempts_max=found.restart_attempts)
    return PipelineSettings(
        name=job,
        source=source,
        outputs=(output,),
        dead_letters=DeadLetterSettings(table=found.dead_letters, engine=engine) if found.dead_letters else None,
        former_clusters=tuple(found.former_cluster),
        checkpoint=found.checkpoint,
        trigger=_trigger(found.trigger or "1 second"),
        subscriber=found.subscriber,
        restart=restart,
    )


def _decode(found: argparse.Namespace) -> DecodeSettings:
    if found.schema is None:
        for name in _OF_A_SCHEMA:
            if getattr(found, name):
                raise InvalidSetting(name=f"--{name.replace('_', '-')}", reason="needs --schema; data that stays bytes has no values", nearest=None)
        return DecodeSettings(undecodable=found.undecodable)
    given: dict[str, Any] = {name: getattr(found, name) for name in _OF_A_SCHEMA[1:] if getattr(found, name) is not None}
    columns = given["timestamp_units"] = {}
    for text in found.timestamp_unit:
        path, equals, unit = text.rpartition("=")
        if unit not in get_args(TimestampUnit) or (equals and not path):
            raise InvalidSetting(name="--timestamp-unit", reason=f"must be s, ms or us, or COLUMN=s, got {text!r}", nearest=None)
        if equals:
            columns[path] = unit
        else:
            given["timestamp_unit"] = unit
    try:
        return DecodeSettings(format="json", columns=found.schema, undecodable=found.undecodable, **given)
    except InvalidSetting as error:
        name = f"--{error.name.replace('_', '-')}" if error.name in _OF_A_SCHEMA else error.name
        raise InvalidSetting(name=name, reason=error.reason, nearest=error.nearest) from None


def _headers(given: str) -> tuple[int, ...]:
    try:
        return tuple(int(text) for text in given.split(","))
    except ValueError:
        raise InvalidSetting(name="--headers", reason=f"must be whole numbers with commas, such as 1,2, got {given!r}", nearest=None) from None


def _trigger(given: str) -> str:
    try:
        return checked_trigger(given)
    except ValueError as error:
        raise InvalidSetting(name="--trigger", reason=str(error), nearest=None) from None


def _parser(job: str, upsert: bool) -> JobParser:
    what = "Merges the log into a Delta table, one row per key." if upsert else "Appends the log to a Delta table, each transaction once."
    parser = JobParser(prog=job, description=f"{what} Continues where the table ends, with or without a checkpoint.", allow_abbrev=False)
    text: dict[str, Any] = {"metavar": "…"}
    if not upsert:
        parser.add_argument(
            "--pipeline",
            action="append",
            default=[],
            metavar="FILE",
            help="a pipeline file or a directory of them, instead of the arguments for source and table; may be repeated",
        )
    parser.add_argument("--cluster", **text, help="log servers of the cluster, host:port[,host:port]")
    parser.add_argument("--table", **text, help="path of the Delta table; the first batch creates it")
    parser.add_argument("--checkpoint", **text, help="directory for Spark's progress; can be deleted, because the table has its own marks")
    if upsert:
        parser.add_argument("--keys", **text, help="columns that identify a row, separated by commas")
        parser.add_argument("--sequence", default="transaction_id", **text, help="column that decides which of two rows is newer (transaction_id)")
    parser.add_argument("--partitions", **text, help="log partitions, such as 0-3,7 (all)")
    parser.add_argument(
        "--starting", **text, help="where to start partitions that the table does not hold yet: earliest, latest, or ids as JSON (earliest)"
    )
    parser.add_argument("--max-transactions-per-trigger", **text, help="largest number of transactions in one commit (no limit)")
    parser.add_argument(
        "--trigger",
        **text,
        help="available-now, which ends at the end of the log, or an interval (1 second); with --pipeline, it overrides the files",
    )
    parser.add_argument(
        "--engine",
        choices=get_args(EngineChoice),
        help="which engine writes the table; auto: arrow where the table allows it, otherwise spark (auto)",
    )
    parser.add_argument("--schema", **text, help="columns of the JSON in the data, as in SQL; without it the table has the data as bytes")
    parser.add_argument(
        "--timestamp-unit",
        action="append",
        default=[],
        metavar="[COLUMN=]UNIT",
        help="unit of a whole number in a TIMESTAMP column, since 1970: s, ms or us; placed_at=s for one column; may be repeated. "
        "Without it such a number cannot be decoded",
    )
    parser.add_argument("--earliest-timestamp", **text, help="an earlier TIMESTAMP cannot be decoded (0001-01-01)")
    parser.add_argument("--latest-timestamp", **text, help="a later TIMESTAMP cannot be decoded (9999-12-31)")
    parser.add_argument(
        "--numeric-strings",
        choices=("strict", "lossless"),
        help='a string where a number is declared, such as "5" for an INT. strict: an error; lossless: converted if no digit is lost (strict)',
    )
    parser.add_argument("--headers", **text, help="read only transactions with these headers, such as 1,2 (all)")
    parser.add_argument(
        "--dead-letters", **text, help="path of the Delta table for transactions that cannot be decoded; with it they do not end the job"
    )
    parser.add_argument(
        "--undecodable",
        choices=("dead_letter", "fail", "skip"),
        help="what to do with a transaction that cannot be decoded (dead_letter with --dead-letters, otherwise fail)",
    )
    parser.add_argument("--where", **text, help="SQL condition for rows; the marks of the table also cover the rows that it leaves out")
    parser.add_argument("--select", **text, help="SQL select list; partition and transaction_id are always kept")
    parser.add_argument(
        "--former-cluster",
        type=UUID,
        action="append",
        default=[],
        metavar="KEY",
        help="key of a cluster that filled the table before and that --cluster replaces; may be repeated. --cluster then inherits the table",
    )
    parser.add_argument("--subscriber", **text, help="name of a subscriber of the log: retention then keeps what the table does not hold yet")
    parser.add_argument("--option", action="append", default=[], metavar="name=value", help="another option of the source; may be repeated")
    parser.add_argument(
        "--restart-attempts",
        type=int,
        metavar="N",
        help="how often in a row to start again after a temporary failure; 0 if a supervisor restarts the job (10)",
    )
    _add_metrics(parser)
    return parser


def _add_metrics(parser: JobParser) -> None:
    parser.add_argument("--metrics-port", type=int, metavar="PORT", help="port for metrics in the format of Prometheus")
    parser.add_argument(
        "--metrics-host",
        default=METRICS_HOST,
        metavar="ADDRESS",
        help="address for the metrics, 0.0.0.0 for all; one that other machines reach needs --metrics-client (127.0.0.1)",
    )
    parser.add_argument(
        "--metrics-client",
        action="append",
        default=[],
        metavar="NAME",
        help="serve the metrics over HTTPS with the certificate of WALTZ_TLS_CERTIFICATE, only to clients with this name in their certificate, "
        "such as spiffe://example.org/reader/prometheus; * for any text without a slash; may be repeated",
    )
    parser.add_argument("--insecure", action="store_true", help="serve the metrics as plain text at an address that other machines reach")
    parser.add_argument("--metrics-file", metavar="FILE", help="file to which metrics in the format of Prometheus are written every five seconds")
