"""The Grafana dashboards in conf/monitoring/dashboards, written from the tables below: `python -m tools.dashboards`.

A panel is a title, a unit of Grafana, and queries with their legends. `$datasource` is chosen in Grafana; `$partition` and `$pipeline` are filters.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["DASHBOARDS", "FOLDER", "Dashboard", "Panel", "document", "main"]

FOLDER = Path(__file__).resolve().parents[1] / "conf" / "monitoring" / "dashboards"

WIDTH, HEIGHT, COLUMNS = 8, 7, 24


class Panel(NamedTuple):
    """`queries`: legend by expression."""

    title: str
    unit: str
    queries: dict[str, str]


class Dashboard(NamedTuple):
    """`filters`: the names of variables with the query that gives their values."""

    name: str
    title: str
    filters: dict[str, str]
    panels: tuple[Panel, ...]


def _p99(metric: str, by: str, *, selector: str = "", legend: str = "") -> dict[str, str]:
    labels = f"le, {by}" if by else "le"
    return {
        f"histogram_quantile({quantile}, sum by ({labels}) (rate({metric}_bucket{selector}[$__rate_interval])))": f"{legend} p{name}".strip()
        for quantile, name in ((0.5, "50"), (0.99, "99"))
    }


def _rate(metric: str, by: str, legend: str, selector: str = "") -> dict[str, str]:
    return {f"sum by ({by}) (rate({metric}{selector}[$__rate_interval]))": legend}


PART = '{partition=~"$partition"}'
PIPE = '{pipeline=~"$pipeline"}'

CLUSTER = Dashboard(
    "cluster",
    "Waltz: cluster",
    {},
    (
        Panel("Processes", "short", {"sum by (job) (up)": "{{job}} answer", "count by (job) (up)": "{{job}} all"}),
        Panel("Not ready", "short", {"waltz_failed_checks > 0": "{{instance}}", "1 - waltz_statistics_up": "{{instance}} gives no statistics"}),
        Panel(
            "Partitions",
            "short",
            {
                "max(waltz_server_cluster_partitions)": "of the cluster",
                "sum(waltz_server_partition_open)": "open",
                "sum(waltz_server_partition_accepts_appends)": "accept appends",
            },
        ),
        Panel("Appends", "ops", _rate("waltz_server_appended_transactions_total", "instance", "{{instance}}")),
        Panel("Append latency by stage", "s", _p99("waltz_server_append_seconds", "stage", legend="{{stage}}")),
        Panel(
            "Rejected and refused",
            "ops",
            _rate("waltz_server_rejected_transactions_total", "instance", "{{instance}} rejected")
            | _rate("waltz_server_refused_transactions_total", "instance", "{{instance}} refused"),
        ),
        Panel("Replicas by state", "short", {"sum by (state) (waltz_server_replicas) > 0": "{{state}}"}),
        Panel("Fewest spare replicas", "short", {"min(waltz_server_partition_spare_replicas)": "until appends stop"}),
        Panel("Replica lag", "short", {"max by (replica) (waltz_server_replica_lag_transactions)": "{{replica}}"}),
        Panel(
            "Recoveries", "s", _p99("waltz_server_recovery_seconds", "") | {"sum(increase(waltz_server_sessions_total[5m]))": "sessions in 5 minutes"}
        ),
        Panel("Fencings in 5 minutes", "short", {"sum by (what) (increase(waltz_server_fencings_total[5m]))": "{{what}}"}),
        Panel("Subscriber lag", "short", {"sum by (subscriber) (waltz_server_subscriber_lag_transactions)": "{{subscriber}}"}),
        Panel("Processor time", "percentunit", _rate("process_cpu_seconds_total", "instance", "{{instance}}", '{job=~"waltz-.*"}')),
        Panel("Memory", "bytes", {'process_resident_memory_bytes{job=~"waltz-.*"}': "{{instance}}"}),
        Panel("Clock offset", "s", {"waltz_time_seconds - timestamp(waltz_time_seconds)": "{{instance}}"}),
        Panel("Versions", "short", {"count by (version, python) (waltz_build_info)": "{{version}} on Python {{python}}"}),
    ),
)

PARTITION = Dashboard(
    "partition",
    "Waltz: partition",
    {"partition": "label_values(waltz_server_partition_open, partition)"},
    (
        Panel("Appends", "ops", _rate("waltz_server_appended_transactions_total", "partition", "{{partition}}", PART)),
        Panel("Blocks", "ops", _rate("waltz_server_appended_blocks_total", "partition", "{{partition}}", PART)),
        Panel("Queued", "bytes", {f"waltz_server_queued_bytes{PART}": "{{partition}}"}),
        Panel("High-water mark", "short", {f"waltz_server_high_water_mark{PART}": "{{partition}}"}),
        Panel("Not committed yet", "short", {f"waltz_server_last_transaction_id{PART} - waltz_server_high_water_mark{PART}": "{{partition}}"}),
        Panel(
            "Generation and session",
            "short",
            {
                f"waltz_server_partition_generation{PART}": "generation {{partition}}",
                f"waltz_server_partition_session{PART}": "session {{partition}}",
            },
        ),
        Panel("Replica lag", "short", {f"waltz_server_replica_lag_transactions{PART}": "{{partition}} on {{replica}}"}),
        Panel("Spare replicas", "short", {f"waltz_server_partition_spare_replicas{PART}": "{{partition}}"}),
        Panel("Fill: bytes missing", "bytes", {f"waltz_server_replica_fill_missing_bytes{PART}": "{{partition}} on {{replica}}"}),
        Panel(
            "Lock conflicts",
            "ops",
            _rate("waltz_server_lock_conflicts_total", "partition", "{{partition}}", PART)
            | _rate("waltz_server_lock_floor_conflicts_total", "partition", "{{partition}} forgotten", PART),
        ),
        Panel("Lock table used", "percentunit", {f"waltz_server_lock_entries{PART} / waltz_server_lock_entries_limit{PART}": "{{partition}}"}),
        Panel("Waits at hot locks", "s", _p99("waltz_server_lock_wait_seconds", "")),
        Panel(
            "Mounted clients",
            "short",
            {f"waltz_server_mounts{PART}": "{{partition}}", f"waltz_server_mounts_catching_up{PART}": "{{partition}} catching up"},
        ),
        Panel("Feed lag", "short", {f"waltz_server_feed_lag_transactions{PART}": "{{partition}}"}),
        Panel("View lag", "short", {f"waltz_server_view_lag_transactions{PART}": "{{partition}} on {{replica}}"}),
    ),
)

STORAGE = Dashboard(
    "storage",
    "Waltz: storage",
    {},
    (
        Panel("Disk used", "percentunit", {"1 - waltz_storage_disk_free_bytes / waltz_storage_disk_size_bytes": "{{instance}}"}),
        Panel("Disk free", "bytes", {"waltz_storage_disk_free_bytes": "{{instance}}"}),
        Panel(
            "Disk state",
            "short",
            {'waltz_storage_disk_state{state!="ample"} > 0': "{{instance}} {{state}}", "waltz_storage_disk_writable": "{{instance}} writable"},
        ),
        Panel("Written", "Bps", _rate("waltz_storage_written_bytes_total", "instance", "{{instance}}")),
        Panel("Write rounds", "ops", _rate("waltz_storage_write_rounds_total", "instance", "{{instance}}")),
        Panel("Write latency", "s", _p99("waltz_storage_write_seconds", "instance", legend="{{instance}}")),
        Panel("Sync latency", "s", _p99("waltz_storage_sync_seconds", "instance", legend="{{instance}}")),
        Panel("Writer memory used", "percentunit", {"waltz_storage_writer_bytes / waltz_storage_writer_limit_bytes": "{{instance}}"}),
        Panel("Received and not on disk", "short", {"sum by (instance) (waltz_storage_unsynced_transactions)": "{{instance}}"}),
        Panel(
            "Corruption",
            "short",
            {
                "waltz_storage_corruption_found_total": "{{instance}} found",
                "waltz_storage_corruption_repaired_total": "{{instance}} repaired",
                "waltz_storage_damaged_segments": "{{instance}} damaged now",
            },
        ),
        Panel("Scrub", "Bps", _rate("waltz_storage_scrub_read_bytes_total", "instance", "{{instance}}")),
        Panel("Partitions not served", "short", {"count by (instance) (waltz_storage_partition_served == 0)": "{{instance}}"}),
        Panel("Fenced requests", "ops", _rate("waltz_storage_fencings_total", "instance", "{{instance}}")),
        Panel(
            "Segments", "short", {"sum by (instance) (waltz_storage_segments)": "{{instance}}", "waltz_storage_open_files": "{{instance}} open files"}
        ),
    ),
)

SPARK = Dashboard(
    "spark",
    "Waltz: Spark",
    {"pipeline": "label_values(waltz_pipeline_running, pipeline)"},
    (
        Panel("Running", "short", {f"waltz_pipeline_running{PIPE}": "{{pipeline}}"}),
        Panel("Failures in an hour", "short", {f"increase(waltz_pipeline_failures_total{PIPE}[1h])": "{{pipeline}}"}),
        Panel("Transactions landed", "ops", _rate("waltz_pipeline_rows_total", "pipeline", "{{pipeline}}", PIPE)),
        Panel("Transactions in a second of the last batch", "ops", {f"waltz_pipeline_rows_per_second{PIPE}": "{{pipeline}}"}),
        Panel("Batch duration", "s", _p99("waltz_pipeline_batch_seconds", "pipeline", selector=PIPE, legend="{{pipeline}}")),
        Panel("Phases of the last batch", "s", {f"waltz_pipeline_phase_seconds{PIPE}": "{{pipeline}} {{phase}}"}),
        Panel("Memory of the driver's Python", "bytes", {'process_resident_memory_bytes{job="waltz-pipelines"}': "{{instance}}"}),
    ),
)

TABLES = Dashboard(
    "tables",
    "Waltz: tables",
    {"pipeline": "label_values(waltz_pipeline_running, pipeline)"},
    (
        Panel("Behind the log", "s", {f"waltz_pipeline_lag_seconds{PIPE}": "{{pipeline}}"}),
        Panel("Behind the log", "short", {f"waltz_pipeline_lag_transactions{PIPE}": "{{pipeline}}"}),
        Panel("Age of the end of the log", "s", {f"waltz_pipeline_log_age_seconds{PIPE}": "{{pipeline}}"}),
        Panel("First id that is not in the table", "short", {f"waltz_pipeline_next_transaction_id{PIPE}": "{{pipeline}} {{partition}}"}),
        Panel("Dead letters", "short", {f"waltz_pipeline_dead_letters_total{PIPE}": "{{pipeline}}"}),
        Panel(
            "Appends against rows",
            "ops",
            {"sum(rate(waltz_server_appended_transactions_total[$__rate_interval]))": "appended"}
            | _rate("waltz_pipeline_rows_total", "pipeline", "{{pipeline}}", PIPE),
        ),
    ),
)

DASHBOARDS = (CLUSTER, PARTITION, STORAGE, SPARK, TABLES)


def document(dashboard: Dashboard) -> dict[str, Any]:
    """As Grafana imports it (schema 39, Grafana 11)."""
    source = {"type": "prometheus", "uid": "${datasource}"}
    variables: list[dict[str, Any]] = [{"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}]
    for name, query in dashboard.filters.items():
        every = {"includeAll": True, "multi": True, "current": {"text": "All", "value": "$__all"}}
        variables.append({"name": name, "type": "query", "datasource": source, "query": query, "refresh": 2, "sort": 3} | every)
    panels = []
    for number, panel in enumerate(dashboard.panels):
        column, row = number % (COLUMNS // WIDTH), number // (COLUMNS // WIDTH)
        panels.append(
            {
                "id": number + 1,
                "title": panel.title,
                "type": "timeseries",
                "datasource": source,
                "gridPos": {"x": column * WIDTH, "y": row * HEIGHT, "w": WIDTH, "h": HEIGHT},
                "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
                "targets": [
                    {"refId": chr(ord("A") + place), "datasource": source, "expr": expression, "legendFormat": legend}
                    for place, (expression, legend) in enumerate(panel.queries.items())
                ],
            }
        )
    return {
        "uid": f"waltz-{dashboard.name}",
        "title": dashboard.title,
        "tags": ["waltz"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": variables},
        "panels": panels,
    }


def text(dashboard: Dashboard) -> str:
    return json.dumps(document(dashboard), indent=1) + "\n"


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for dashboard in DASHBOARDS:
        (FOLDER / f"{dashboard.name}.json").write_text(text(dashboard))


if __name__ == "__main__":
    main()
