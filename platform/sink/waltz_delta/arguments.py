"""The command line of the Spark jobs: which arguments there are, and one clear sentence for each that is wrong. Starts nothing."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from pyspark_waltz.options import SourceOptions
from waltz_log.errors import InvalidSetting

__all__ = ["JobArguments", "parse_arguments"]

AVAILABLE_NOW = "available-now"


@dataclass(frozen=True, slots=True)
class JobArguments:
    """`source` are options of `format("waltz")`, checked; without the start, which the table decides with `starting`."""

    job: str
    table: str
    checkpoint: str
    trigger: str
    starting: str
    source: dict[str, str]
    partitions: tuple[int, ...] | None = None
    schema: str | None = None
    where: str | None = None
    select: str | None = None
    keys: tuple[str, ...] = ()
    sequence: str = "transaction_id"
    verbose: bool = False
    options: SourceOptions = field(repr=False, kw_only=True)

    @property
    def once(self) -> bool:
        return self.trigger == AVAILABLE_NOW


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        told = re.fullmatch(r"argument ([^:]+): (.*)", message, re.DOTALL)
        raise InvalidSetting(name=told[1] if told else self.prog, reason=told[2] if told else message, nearest=None)


def parse_arguments(job: str, arguments: Sequence[str], *, upsert: bool) -> JobArguments:
    """Raises `InvalidSetting`; prints help and leaves with 0 for `--help`."""
    parser = _parser(job, upsert)
    found, unknown = parser.parse_known_args(arguments)
    if unknown:
        known = [name for action in parser._actions for name in action.option_strings if name.startswith("--")]
        raise InvalidSetting.unknown(unknown[0].split("=")[0], known, what="argument")
    for name in ("cluster", "table", "checkpoint", *(("keys",) if upsert else ())):
        if not getattr(found, name):
            raise InvalidSetting(name=f"--{name}", reason="is required", nearest=None)
    source = {"cluster": found.cluster}
    for text in found.option:
        name, equals, value = text.partition("=")
        if not equals or name.lower() in ("cluster", "startingtransactionids"):
            raise InvalidSetting(
                name="--option", reason=f"wants name=value, of another option than have arguments of their own, got {text!r}", nearest=None
            )
        source[name] = value
    for name, value in (("partitions", found.partitions), ("maxTransactionsPerTrigger", found.max_transactions_per_trigger)):
        if value is not None:
            source[name] = value
    options = SourceOptions.parse({**source, "startingTransactionIds": found.starting})
    options.check_use("stream")
    if found.trigger != AVAILABLE_NOW and not re.fullmatch(r"\s*\d+\s*[a-z]+\s*", found.trigger):
        raise InvalidSetting(name="--trigger", reason=f"wants available-now or an interval such as '1 second', got {found.trigger!r}", nearest=None)
    return JobArguments(
        job=job,
        table=found.table,
        checkpoint=found.checkpoint,
        trigger=found.trigger.strip(),
        starting=found.starting,
        source=source,
        partitions=options.partitions,
        schema=found.schema,
        where=found.where,
        select=found.select,
        keys=tuple(name.strip() for name in found.keys.split(",") if name.strip()) if upsert else (),
        sequence=found.sequence if upsert else "transaction_id",
        verbose=found.verbose,
        options=options,
    )


def _parser(job: str, upsert: bool) -> _Parser:
    what = "Merges the log into a Delta table, one row per key." if upsert else "Appends the log to a Delta table, each transaction once."
    parser = _Parser(prog=job, description=f"{what} Goes on where the table ends, with or without a checkpoint.", allow_abbrev=False)
    text: dict[str, Any] = {"metavar": "…"}
    parser.add_argument("--cluster", **text, help="address of the cluster, host:port/root")
    parser.add_argument("--table", **text, help="path of the Delta table; made by the first batch")
    parser.add_argument("--checkpoint", **text, help="directory for Spark's progress; may be deleted, the table knows better")
    if upsert:
        parser.add_argument("--keys", **text, help="columns that identify a row, comma between them")
        parser.add_argument("--sequence", default="transaction_id", **text, help="column that tells which of two rows is newer (transaction_id)")
    parser.add_argument("--partitions", **text, help="log partitions, as 0-3,7 (all)")
    parser.add_argument(
        "--starting", default="earliest", **text, help="earliest, latest or JSON of ids, for partitions that the table holds nothing of"
    )
    parser.add_argument("--max-transactions-per-trigger", **text, help="most transactions of one commit (no limit)")
    parser.add_argument("--trigger", default="1 second", **text, help="available-now, which ends when the log is read, or an interval (1 second)")
    parser.add_argument("--schema", **text, help="of the JSON in the data, as SQL columns; without it the table gets the data as bytes")
    parser.add_argument("--where", **text, help="SQL condition; what it leaves out counts as seen")
    parser.add_argument("--select", **text, help="SQL select list; partition and transaction_id are kept in any case")
    parser.add_argument("--option", action="append", default=[], metavar="name=value", help="another option of the source; may be repeated")
    parser.add_argument("--verbose", action="store_true", help="on failure, the whole story after the one line")
    return parser
