"""One append is one trace: from the application's span through the owner and its replicas, each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import yaml
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.e2e.pasted import ROOT, blocks
from tests.integration.log.span_collector import Collector, ReceivedSpan, collector
from waltz_log.client import ClientSettings, Intent, Lock, LockConflict, Outbox, SyncOutbox, SyncWaltzClient, WaltzClient
from waltz_log.processes.local_cluster import LocalCluster
from waltz_log.server import ServerSettings
from waltz_log.storage import StorageSettings

PARTITIONS = 2
PAYLOAD, KEY = b"payload-that-nobody-may-see", "key-that-nobody-may-see"
OF_A_REPLICA = ("waltz.replica.append", "waltz.replica.write", "waltz.replica.sync")
OF_THE_OWNER = ("waltz.server.append", "waltz.server.queue", "waltz.server.lock_decision", "waltz.server.replicate")


@pytest.fixture(scope="module")
def spans() -> Iterator[Collector]:
    with collector() as found:
        yield found


@pytest.fixture(scope="module")
def cluster(spans: Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    settings = {"tracing": {"endpoint": spans.address, "export_interval_s": 0.1}}
    with LocalCluster(
        tmp_path_factory.mktemp("cluster"), partitions=PARTITIONS, storages=3, servers=1, server_settings=settings, storage_settings=settings
    ) as found:
        yield found


@pytest.fixture(scope="module")
def application() -> InMemorySpanExporter:
    """The application's own spans, recorded by the provider that it configures, once in a process."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


@pytest.fixture
async def client(cluster: LocalCluster, application: InMemorySpanExporter) -> AsyncIterator[WaltzClient]:
    async with WaltzClient.open(cluster.cluster, ClientSettings(tracing=True)) as found:
        yield found


def _span() -> trace.Span:
    return trace.get_tracer("application").start_span("order placed")


def _trace_of(span: trace.Span) -> str:
    return f"{span.get_span_context().trace_id:032x}"


def _whole(found: list[ReceivedSpan]) -> bool:
    names = [span.name for span in found]
    return all(names.count(name) >= 1 for name in OF_THE_OWNER) and all(names.count(name) >= 3 for name in OF_A_REPLICA)


def _expect_children(found: list[ReceivedSpan], root: str) -> None:
    """Every span is below the right one, and within its time but for what a clock that is read twice may differ."""
    by_id = {span.span: span for span in found}
    below = {
        "waltz.server.append": None,
        "waltz.server.queue": "waltz.server.append",
        "waltz.server.lock_decision": "waltz.server.append",
        "waltz.server.replicate": "waltz.server.append",
        "waltz.replica.append": "waltz.server.replicate",
        "waltz.replica.write": "waltz.replica.append",
        "waltz.replica.sync": "waltz.replica.append",
    }
    for span in found:
        parent = by_id.get(span.parent)
        assert (parent.name if parent else None) == below[span.name], span
        if parent is None:
            assert span.parent == root
        assert span.start_ns <= span.end_ns


async def test_an_append_is_one_trace_through_all_processes(client: WaltzClient, spans: Collector, application: InMemorySpanExporter) -> None:
    with trace.use_span(_span(), end_on_exit=True) as root:
        receipt = await client.append(0, PAYLOAD, write_locks=[Lock("order", KEY)])
    found = spans.wait(_trace_of(root), _whole)
    append = next(span for span in application.get_finished_spans() if span.name == "waltz.append")
    assert append.context is not None
    assert append.parent is not None
    assert append.parent.span_id == root.get_span_context().span_id
    assert dict(append.attributes or {}) == {"waltz.partition": 0, "waltz.outcome": "committed", "waltz.transaction_id": receipt.transaction_id}
    _expect_children(found, f"{append.context.span_id:016x}")
    assert {span.instance for span in found if span.service == "waltz-storage"} == {"storage-0", "storage-1", "storage-2"}
    assert {span.service for span in found} == {"waltz-server", "waltz-storage"}
    assert {span.attributes.get("waltz.transaction_id") for span in found if span.name in ("waltz.server.append", "waltz.replica.append")} == {
        receipt.transaction_id
    }
    assert not any(PAYLOAD in body or KEY.encode() in body for body in spans.bodies)


async def test_an_outbox_continues_the_trace_of_a_submit_that_an_earlier_process_accepted(
    cluster: LocalCluster, spans: Collector, application: InMemorySpanExporter, tmp_path: Path
) -> None:
    settings = ClientSettings(tracing=True)
    async with Outbox.open(tmp_path, "127.0.0.1:1", client_settings=settings) as outbox:
        with trace.use_span(_span(), end_on_exit=True) as root:
            await outbox.submit(Intent.data(0, PAYLOAD))
    with SyncOutbox(tmp_path, cluster.cluster, client_settings=settings) as outbox_again:
        outbox_again.flush(timeout_s=60)
        with trace.use_span(_span(), end_on_exit=True) as second:
            outbox_again.submit(Intent.data(0, PAYLOAD))
        outbox_again.flush(timeout_s=60)
    for submit in (root, second):
        found = spans.wait(_trace_of(submit), _whole)
        parent = submit.get_span_context().span_id
        append = next(span for span in application.get_finished_spans() if span.parent is not None and span.parent.span_id == parent)
        assert append.name == "waltz.append"
        assert append.context is not None
        _expect_children(found, f"{append.context.span_id:016x}")
    assert not any(PAYLOAD in body for body in spans.bodies)


def test_the_guide_works_as_it_stands(cluster: LocalCluster, spans: Collector, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "guides" / "traces.md").read_text()
    node = yaml.safe_load(blocks(page, "settings")["node"])
    assert (
        ServerSettings(coordinator="here:1/x", **node).tracing
        == StorageSettings(name="a", directory=tmp_path, coordinator="here:1/x", **node).tracing
    )
    program = blocks(page, "program")["application"].replace("127.0.0.1:5101", cluster.cluster)
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, timeout=120, check=True)
    own = [json.loads(line) for line in (tmp_path / "spans.json").read_text().splitlines()]
    assert [span["name"] for span in own] == ["waltz.append", "place order"]
    spans.wait(own[0]["context"]["trace_id"].removeprefix("0x"), _whole)


async def test_a_rejected_append_names_the_winner(client: WaltzClient, spans: Collector, application: InMemorySpanExporter) -> None:
    won = await client.append(0, b"first", write_locks=[Lock("seat", "1A")])
    with trace.use_span(_span(), end_on_exit=True) as root, pytest.raises(LockConflict):
        await client.append(0, b"second", write_locks=[Lock("seat", "1A")], high_water_mark=won.transaction_id - 1)
    found = spans.wait(_trace_of(root), lambda got: "waltz.server.append" in [span.name for span in got])
    decision = next(span for span in found if span.name == "waltz.server.lock_decision")
    assert decision.attributes == {"waltz.outcome": "rejected", "waltz.winner": won.transaction_id}
    assert not [span for span in found if span.name.startswith("waltz.replica")]


async def test_rows_of_a_bulk_append_share_the_trace_of_the_call(client: WaltzClient, spans: Collector, application: InMemorySpanExporter) -> None:
    with trace.use_span(_span(), end_on_exit=True) as root:
        receipt = await client.append_bulk(1, [b"row"] * 500)
    assert receipt.submitted == 500
    spans.wait(_trace_of(root), _whole)
    append = next(span for span in application.get_finished_spans() if span.name == "waltz.append_bulk")
    assert dict(append.attributes or {}) == {"waltz.partition": 1, "waltz.submitted": 500, "waltz.committed": 500}


def test_a_blocking_client_traces_in_the_callers_span(cluster: LocalCluster, spans: Collector, application: InMemorySpanExporter) -> None:
    with SyncWaltzClient(cluster.cluster, ClientSettings(tracing=True)) as client:
        with trace.use_span(_span(), end_on_exit=True) as root:
            client.append(0, b"waits")
        spans.wait(_trace_of(root), _whole)
        with trace.use_span(_span(), end_on_exit=True) as root:
            client.append_nowait(0, b"does not wait").result(timeout=30)
        spans.wait(_trace_of(root), _whole)


async def test_an_append_outside_a_recorded_span_makes_no_span(client: WaltzClient, spans: Collector, application: InMemorySpanExporter) -> None:
    before = len(application.get_finished_spans())
    unsampled = trace.NonRecordingSpan(trace.SpanContext(1, 1, is_remote=False, trace_flags=trace.TraceFlags(0)))
    await client.append(0, b"no span")
    with trace.use_span(unsampled):
        await client.append(0, b"a span that is not recorded")
    assert len(application.get_finished_spans()) == before
    with trace.use_span(_span(), end_on_exit=True) as root:
        await client.append(0, b"after them")
    spans.wait(_trace_of(root), _whole)
    assert f"{1:032x}" not in {span.trace for span in spans.spans}
