"""A Spark job from its arguments to its exit code: session, table, query, clean stop.

Exit codes are those of `waltz`: 0 done or stopped as asked, 2 wrong arguments or a table that does not fit, 3 nobody answers (start it again), 4 the
checkpoint is ahead of the table, 1 anything else. One line on stderr says what happened.
"""

from __future__ import annotations

import re
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_waltz.cluster import CONNECT_TIMEOUT_S
from waltz_delta.append import DeltaAppend
from waltz_delta.arguments import JobArguments, parse_arguments
from waltz_delta.decode import shape
from waltz_delta.start import starting_transaction_ids
from waltz_delta.stopping import StopRequest
from waltz_delta.upsert import DeltaUpsert
from waltz_log.cli.exit_codes import FAILED, OK, REFUSED, UNAVAILABLE, USAGE, exit_code_of
from waltz_log.client.inspect import ClusterInspector
from waltz_log.errors import WaltzError

__all__ = ["ingest", "upsert"]

BATCH_PATIENCE_S = 15.0
"""A batch that runs when a stop is asked for may end; beyond this it is broken off, and its rows land at the next start."""

_CODES = {"NotADeltaTable": USAGE, "SchemaMismatch": USAGE, "GapInTable": REFUSED, "WriteContended": UNAVAILABLE, "RangeUnreadable": UNAVAILABLE}
_TOLD = re.compile(r"(?:waltz_log|waltz_delta|pyspark_waltz)\.errors\.(\w+): ([^\n]*)")

Sink = Callable[[DataFrame, int], None]


def ingest(arguments: Sequence[str]) -> int:
    """Appends. The exit code."""
    return _told("ingest", arguments, upsert=False, run=lambda job: _run(job, lambda key: DeltaAppend(job.table, key)))


def upsert(arguments: Sequence[str]) -> int:
    """Merges by key. The exit code."""
    return _told(
        "upsert", arguments, upsert=True, run=lambda job: _run(job, lambda key: DeltaUpsert(job.table, key, job.keys, sequence=job.sequence))
    )


def _told(name: str, arguments: Sequence[str], *, upsert: bool, run: Callable[[JobArguments], None]) -> int:
    verbose = "--verbose" in arguments
    try:
        run(parse_arguments(name, arguments, upsert=upsert))
    except WaltzError as error:
        code, line = _CODES.get(type(error).__name__) or exit_code_of(error), str(error)
    except Exception as error:
        code, line = _from_spark(error)
    else:
        return OK
    print(f"{name}: {line}", file=sys.stderr, flush=True)
    if verbose:
        traceback.print_exc()
    return code


def _from_spark(error: Exception) -> tuple[int, str]:
    """Our error within what Spark made of it on its way through processes: the innermost, which comes last; otherwise Spark's first line."""
    text = str(error)
    found = _TOLD.findall(text)
    if not found:
        return FAILED, text.strip().split("\n")[0]
    name, line = found[-1]
    if name in _CODES:
        return _CODES[name], line
    import waltz_log.errors

    kind = getattr(waltz_log.errors, name, None)
    return (exit_code_of(kind.__new__(kind)) if kind is not None else FAILED), line


def _run(job: JobArguments, sink_for: Callable[[str], Any]) -> None:
    with ClusterInspector(job.options.cluster, timeout_s=CONNECT_TIMEOUT_S) as inspector:
        key, count = str(inspector.parameters.key), inspector.parameters.partitions
    partitions = job.partitions if job.partitions is not None else tuple(range(count))
    spark = SparkSession.builder.appName(f"waltz {job.job}").getOrCreate()
    try:
        stop = StopRequest(spark)
        starting = starting_transaction_ids(spark, job.table, key, partitions=partitions, otherwise=job.options.starting)
        rows = spark.readStream.format("waltz").options(**job.source, startingTransactionIds=starting).load()
        rows = shape(rows, schema=job.schema, where=job.where, select=job.select)
        sink = sink_for(key)
        sink.prepare(spark, rows.schema)
        writer = rows.writeStream.queryName(job.job).option("checkpointLocation", job.checkpoint).foreachBatch(sink)
        query = (writer.trigger(availableNow=True) if job.once else writer.trigger(processingTime=job.trigger)).start()
        print(f"ready {job.job} table={job.table} cluster={job.options.cluster}", flush=True)
        _follow(query, stop)
    finally:
        spark.stop()


def _follow(query: StreamingQuery, stop: StopRequest) -> None:
    """Until the query ends, which raises where it failed, or a stop is asked for."""
    while not query.awaitTermination(1):
        if stop.asked:
            deadline = time.monotonic() + BATCH_PATIENCE_S
            while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
                time.sleep(0.05)
            query.stop()
            return
