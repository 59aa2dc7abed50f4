"""docs/reference/metrics.md, the page of all metrics, read from the families that processes expose (`waltz_log.monitoring`)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tools.pipeline_metrics import metrics_table
from waltz_log.core.status.latency import BOUNDS_S
from waltz_log.metrics import CLIENT, OUTBOX
from waltz_log.monitoring.exposition import PROCESS
from waltz_log.monitoring.families import Family
from waltz_log.monitoring.server_families import SERVER
from waltz_log.monitoring.storage_families import STORAGE
from waltz_log.monitoring.trace_families import TRACES
from waltz_log.monitoring.worker_families import WORKERS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "metrics.md"

INTRODUCTION = f"""\
# Metrics

Generated from the source by `make reference`.

A log server or storage node answers `/metrics` if the setting `http.port` is set; [monitoring](../guides/monitoring.md) shows how to scrape it and
what to alert on. Names of metrics and labels are an interface.

- Counters start at 0 when the process starts, and counters of a partition also when the server opens the partition. Use `rate()` or `increase()`.
- Labels are bounded: `partition` is a log partition of the node, `replica` the name of a storage node, `worker` the number of a worker process. The
  values of other labels are words that the table lists, and names of at most 50 subscribers.
- Prometheus adds the labels `job` and `instance`, which name the process.
- Transaction ids are gauges: `waltz_server_high_water_mark` and `waltz_server_last_transaction_id` are positions in the log.
- Histograms have the buckets {", ".join(f"{bound:g}" for bound in BOUNDS_S)} seconds.
"""

SECTIONS: tuple[tuple[str, str, tuple[Family[Any], ...]], ...] = (
    (
        "Every process",
        "Also `process_*` as in every Prometheus client: processor time, memory, open files, start. Of a node with workers they describe the "
        "supervisor.",
        PROCESS,
    ),
    ("Log server", "", SERVER),
    ("Storage node", "", STORAGE),
    ("Workers", "Only of nodes with several workers. A worker that is restarted starts at 0 again.", WORKERS),
    ("Traces", "Only of nodes with `tracing` ([traces](../guides/traces.md)).", TRACES),
)

CLIENTS: tuple[str, str, tuple[Family[Any], ...]] = (
    "Clients",
    "An application shows these if it registers a `WaltzCollector` ([client](../guides/client.md#observe-it)). Counters start with the "
    "client or outbox.",
    (*CLIENT, *OUTBOX),
)

PIPELINES = """\
## Pipelines

Jobs expose these with `--metrics-port` or `--metrics-file` ([pipelines](../guides/pipelines.md#metrics)). All have the label `pipeline`.
"""


def page() -> str:
    parts = [INTRODUCTION]
    for heading, text, families in (*SECTIONS, CLIENTS):
        parts.append("\n\n".join([f"## {heading}", *([text] if text else []), _table(families)]) + "\n")
    parts.append(f"{PIPELINES}\n{metrics_table()}\n")
    return "\n".join(parts)


def _table(families: Iterable[Family[Any]]) -> str:
    lines = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    return "\n".join([*lines, *(_row(each) for each in families)])


def _row(family: Family[Any]) -> str:
    return f"| `{family.name}` | {family.kind} | {', '.join(f'`{label}`' for label in family.labels)} | {family.meaning} |"
