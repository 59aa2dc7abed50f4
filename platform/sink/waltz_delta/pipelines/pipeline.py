"""The settings of a pipeline: where it reads the log, a landing, and a trigger. Values only; `pipeline_file` reads them, `pipeline_run` runs them."""

from __future__ import annotations

import json
import re
from datetime import date
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from pyspark_waltz.options import SourceOptions
from waltz_delta.settings import LandingSettings
from waltz_log.errors import InvalidSetting
from waltz_log.settings import Settings
from waltz_log.telemetry.settings import TracingSettings

__all__ = ["AVAILABLE_NOW", "PipelineSettings", "RestartSettings", "batch_options", "checked_trigger"]

AVAILABLE_NOW = "available-now"
_INTERVAL = re.compile(r"\d+ *(milliseconds?|ms|seconds?|s|minutes?|m|hours?|h|days?|d)")


def checked_trigger(given: str) -> str:
    """Raises `ValueError`, which pydantic and argparse each report in their form."""
    text = " ".join(given.split())
    if text != AVAILABLE_NOW and not _INTERVAL.fullmatch(text):
        raise ValueError(f"must be {AVAILABLE_NOW} or an interval such as '2 seconds', got {given!r}")
    return text


def _texts(given: object) -> object:
    """Numbers, booleans and mappings of YAML as texts, because Spark's options are texts."""
    if not isinstance(given, dict):
        return given
    return {name: _text(value) for name, value in given.items()}


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, date):  # or a datetime: YAML parses text that looks like one
        return value.isoformat()
    try:
        return json.dumps(value)
    except (TypeError, ValueError):
        raise ValueError(f"must be text, numbers, true or false, or mappings of them, got {type(value).__name__}") from None


def _stream_options(given: dict[str, str]) -> dict[str, str]:
    if SourceOptions.parse(given).decode is not None:
        raise ValueError("columns cannot be an option of a pipeline's source: each output declares its own in decode")
    if any(name.lower() == "mode" for name in given):
        raise ValueError("mode cannot be an option of a pipeline's source: a pipeline reads transactions")
    SourceOptions.parse(given).check_use("stream")
    return given


class RestartSettings(Settings):
    """What happens when the query fails for a reason that may pass. A failure that cannot pass (a table of another schema) ends the pipeline at
    once."""

    attempts_max: int = Field(
        default=10, ge=0, description="Consecutive restarts before the pipeline stops. 0 where a supervisor restarts the whole job."
    )
    pause_s: float = Field(default=1.0, ge=0.0, le=3600.0, description="Pause before the first restart; doubled before each further one.")
    pause_max_s: float = Field(default=60.0, ge=0.0, le=3600.0, description="Longest pause between restarts, and so the delay after an outage.")
    healthy_s: float = Field(
        default=300.0, gt=0.0, description="A query that ran this long counts as recovered: its failures are counted from 0 again."
    )

    def pause_after(self, failures: int) -> float:
        """Seconds to wait after the given number of failures in a row, from 1."""
        return float(min(self.pause_max_s, self.pause_s * 2.0 ** min(failures - 1, 32)))


class PipelineSettings(LandingSettings):
    """One streaming query: from the log into its tables."""

    name: str = Field(
        default="pipeline",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$",
        description="Names the query, its metrics and its lines. Without it, the name of the file without `.yaml`. Every pipeline of a job needs "
        "another one.",
    )
    source: Annotated[dict[str, str], BeforeValidator(_texts), AfterValidator(_stream_options)] = Field(
        description="Options of `format('waltz')`, by their own names; `cluster` is required. A start counts only for partitions that the tables "
        "hold nothing of: the tables' marks say where to go on.",
    )
    checkpoint: str = Field(
        min_length=1, description="Directory for Spark's progress, one for each pipeline. May be deleted: the tables know better."
    )
    trigger: Annotated[str, AfterValidator(checked_trigger)] = Field(
        default="1 second",
        description="`available-now` ends when the log of the start is read; an interval such as `2 seconds` goes on. Longer intervals make fewer, "
        "larger files and later rows.",
    )
    restart: RestartSettings = Field(default=RestartSettings(), description="When it is started again after a failure.")
    tracing: TracingSettings | None = Field(
        default=None,
        description="Sends a span of the commit for traced appends to a collector, so that their traces reach from the application to the table. "
        "Needs the extra `tracing`.",
    )
    subscriber: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$",
        description="Name under which the log keeps what the tables do not hold yet, from the first batch on and until `waltz subscriber remove`. "
        "One for each pipeline of a cluster; needed where topics are trimmed and the tables may fall behind.",
    )

    @property
    def options(self) -> SourceOptions:
        return SourceOptions.parse(self.source)

    @property
    def once(self) -> bool:
        return self.trigger == AVAILABLE_NOW

    @property
    def tables(self) -> list[str]:
        return [output.target.table for output in self.outputs]


def batch_options(source: dict[str, str]) -> dict[str, str]:
    """The stream's options that apply to a batch read: no trigger limits, starts and ends."""
    kept = {name: value for name, value in source.items() if not name.lower().startswith(("starting", "ending"))}
    while True:
        try:
            SourceOptions.parse(kept).check_use("batch")
        except InvalidSetting as error:
            left = {name: value for name, value in kept.items() if name.lower() != error.name.lower()}
            if len(left) == len(kept) or error.name == "cluster":
                raise
            kept = left
        else:
            return kept
