"""Metrics as text: parsed again by Prometheus' own parser, compared with the statistics they come from."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.log.monitoring.conftest import CLUSTER_KEY, HOT_LOCK
from waltz_log.core.status.server_statistics import ServerStatistics
from waltz_log.core.status.storage_statistics import NodeStatistics
from waltz_log.monitoring.exposition import exposition, families_of
from waltz_log.monitoring.monitored import Finding, Role
from waltz_log.monitoring.readiness import Check, checks_of

DOCS = Path(__file__).resolve().parents[4] / "docs"

TEXT = "text/plain;version=0.0.4"
OPENMETRICS = "application/openmetrics-text;version=1.0.0"

LABELS = {"partition", "replica", "subscriber", "worker", "state", "cache", "direction", "version", "python", "stage", "what", "result", "value"}
"""All that processes use. Each has a bounded number of values."""

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def _found(statistics: ServerStatistics | NodeStatistics) -> Finding:
    return Finding("serving", checks_of(statistics), statistics)


def _families(found: Finding) -> list[Metric]:
    return list(text_string_to_metric_families(exposition(found, TEXT)[0].decode()))


def _samples(found: Finding) -> Samples:
    return {(each.name, frozenset(each.labels.items())): each.value for family in _families(found) for each in family.samples}


def _value(samples: Samples, name: str, **labels: str) -> float | None:
    return samples.get((name, frozenset(labels.items())))


def test_a_server_shows_its_partitions_replicas_and_workers(server: ServerStatistics) -> None:
    samples = _samples(_found(server))
    assert _value(samples, "waltz_server_appended_transactions_total", partition="0") == 77
    assert _value(samples, "waltz_server_queued_bytes", partition="0") == 4096
    assert _value(samples, "waltz_server_partition_open", partition="0") == 1
    assert _value(samples, "waltz_server_partition_open", partition="4") == 0
    assert _value(samples, "waltz_server_partition_accepts_appends", partition="0") == 1
    assert _value(samples, "waltz_server_partition_accepts_appends", partition="4") == 0
    assert _value(samples, "waltz_server_high_water_mark", partition="4") is None
    assert _value(samples, "waltz_server_replica_live", partition="0", replica="storage-2") == 0
    assert _value(samples, "waltz_server_replica_lag_transactions", partition="0", replica="storage-2") == 20
    assert _value(samples, "waltz_server_view_lag_transactions", partition="0", replica="storage-0") == 30
    assert _value(samples, "waltz_server_partition_spare_replicas", partition="0") == 0
    assert _value(samples, "waltz_server_partition_spare_replicas", partition="4") is None
    assert _value(samples, "waltz_server_cluster_partitions") == 5
    assert _value(samples, "waltz_server_subscriber_lag_transactions", subscriber="flights") == 7
    assert _value(samples, "waltz_server_lock_wait_seconds_count") == 4
    assert _value(samples, "waltz_server_append_seconds_count", stage="replicate") == 4
    assert _value(samples, "waltz_server_replicas", state="failed") == 1
    assert _value(samples, "waltz_server_replicas", state="live") == 1
    assert _value(samples, "waltz_server_cache_limit_bytes", cache="transactions") == 200
    assert _value(samples, "waltz_worker_up", worker="1") == 0
    assert _value(samples, "waltz_worker_restarts_total", worker="0") == 2
    assert _value(samples, "waltz_worker_memory_highest_bytes", worker="0") == 2048 * 1024
    assert _value(samples, "waltz_worker_forwarded_bytes_total", worker="0", direction="from_owner") == 200
    assert (_value(samples, "waltz_ready"), _value(samples, "waltz_failed_checks")) == (0, 2)
    assert [_value(samples, "waltz_server_fencings_total", what=what) for what in ("generation", "session", "mount")] == [1, 2, 3]


def test_a_histogram_counts_each_duration_in_all_buckets_that_hold_it(server: ServerStatistics) -> None:
    samples = _samples(_found(server))
    name = "waltz_server_append_seconds"
    bounds = ("0.00025", "0.002", "0.004", "8.192", "+Inf")
    assert [_value(samples, f"{name}_bucket", stage="commit", le=bound) for bound in bounds] == [1, 1, 3, 3, 4]
    assert _value(samples, f"{name}_count", stage="queue") == 4
    assert _value(samples, f"{name}_sum", stage="queue") == pytest.approx(100.0061)


def test_a_storage_node_shows_its_disk_partitions_and_scrub(node: NodeStatistics) -> None:
    samples = _samples(_found(node))
    assert _value(samples, "waltz_storage_disk_free_bytes") == 1000
    assert [_value(samples, "waltz_storage_disk_state", state=state) for state in ("ample", "low", "refusing")] == [0, 1, 0]
    assert [_value(samples, "waltz_storage_partition_served", partition=each) for each in "012"] == [1, 0, 0]
    assert _value(samples, "waltz_storage_written_bytes_total", partition="0") == 9000
    assert _value(samples, "waltz_storage_corruption_found_total") == 3
    assert _value(samples, "waltz_storage_corruption_repaired_total") == 2
    assert _value(samples, "waltz_storage_corrupt_partitions") == 1


def test_a_node_whose_scrub_has_not_begun_has_no_samples_of_it(node: NodeStatistics) -> None:
    assert _value(_samples(_found(replace(node, scrub=None))), "waltz_storage_scrub_passes_total") is None


def test_a_process_that_gives_no_statistics_still_shows_itself() -> None:
    samples = _samples(Finding("starting", (Check("process", "starting: opening the directory"),), None))
    assert (_value(samples, "waltz_ready"), _value(samples, "waltz_statistics_up")) == (0, 0)
    assert (_value(samples, "process_cpu_seconds_total") or 0) > 0
    assert any(name == "waltz_build_info" for name, _ in samples)
    assert {name for name, _ in samples if name.startswith(("waltz_server", "waltz_storage"))} == set()


@pytest.mark.parametrize("role", get_args(Role))
def test_every_family_that_is_declared_is_exposed_under_its_name_and_kind(role: Role, server: ServerStatistics, node: NodeStatistics) -> None:
    found = _found(server if role == "server" else replace(node, workers=server.workers))
    exposed = {family.name: (family.type, family.documentation) for family in _families(found)}
    declared = {family.name.removesuffix("_total"): (family.kind, family.meaning) for family in families_of(role)}
    assert {name: value for name, value in exposed.items() if not name.startswith("process_")} == declared


@pytest.mark.parametrize("role", get_args(Role))
def test_names_and_labels_follow_the_conventions(role: Role) -> None:
    families = families_of(role)
    assert len({family.name for family in families}) == len(families)
    for family in families:
        assert re.fullmatch(r"waltz_[a-z]+(_[a-z]+)*", family.name)
        assert family.name.endswith("_total") == (family.kind == "counter"), family.name
        assert not re.search(r"_(ms|kib|mb|us)(_|$)", family.name), "base units only"
        assert ("bytes" in family.name) == family.name.removesuffix("_total").endswith("_bytes"), family.name
        assert set(family.labels) <= LABELS, family.name
        assert family.meaning.endswith((".", ")."))


def test_the_cluster_key_and_keys_of_locks_are_not_shown(server: ServerStatistics, node: NodeStatistics) -> None:
    text = b"".join(exposition(_found(each), TEXT)[0] for each in (server, node)).decode()
    assert CLUSTER_KEY not in text
    assert HOT_LOCK not in text
    assert "corrupt data in" not in text


def test_openmetrics_is_given_to_who_asks_for_it(server: ServerStatistics) -> None:
    body, content_type = exposition(_found(server), OPENMETRICS)
    assert content_type.startswith("application/openmetrics-text")
    families = {family.name for family in openmetrics.text_string_to_metric_families(body.decode())}  # type: ignore[no-untyped-call]
    assert "waltz_server_appended_transactions" in families


def test_each_metric_that_a_page_names_exists() -> None:
    declared = {family.name for role in get_args(Role) for family in families_of(role)}
    declared |= {f"{family.name}_{part}" for role in get_args(Role) for family in families_of(role) for part in ("bucket", "count", "sum")}
    for page in ("guides/monitoring.md", "decisions/0041-metrics-are-served-by-threads.md"):
        named = set(re.findall(r"\bwaltz_(?:server|storage|worker|ready|statistics|build|failed)[a-z_]*", (DOCS / page).read_text()))
        assert named, page
        assert named <= declared, page
