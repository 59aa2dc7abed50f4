"""The platform and Kafka get the same load, with every setting given, and no latency of another measurement is published."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks import kafka
from benchmarks.kafka import COMPARED, Compared
from benchmarks.kafka_cluster import Produced

ROOT = Path(__file__).parents[3]


class Load:
    rate = 5.0
    latencies_ms = (1.0, 2.0, 3.0)


@pytest.mark.parametrize("compared", COMPARED, ids=lambda compared: compared.name)
async def test_both_sides_get_the_same_load(compared: Compared, monkeypatch: pytest.MonkeyPatch) -> None:
    ours: list[tuple[str, int, float]] = []
    theirs: list[tuple[int, int, Mapping[str, Any]]] = []

    async def pipelined(client: Any, count: int, *, window: int) -> Load:
        ours.append(("pipelined", count, window))
        return Load()

    async def offered(client: Any, count: int, *, rate: float) -> Load:
        ours.append(("offered", count, rate))
        return Load()

    class Cluster:
        def produce(self, count: int, *, record_bytes: int, per_s: int, settings: Mapping[str, Any]) -> Produced:
            theirs.append((count, per_s, settings))
            line = "5 records sent, 5.0 records/sec (1 MB/sec), 1.0 ms avg latency, 9 ms max latency, 2 ms 50th, 3 ms 95th, 4 ms 99th, 5 ms 99.9th."
            return Produced(line)

    monkeypatch.setattr(kafka, "pipelined", pipelined)
    monkeypatch.setattr(kafka, "offered", offered)
    client: Any = None
    cluster: Any = Cluster()
    await compared.platform(client)
    compared.of_kafka(cluster)
    ((way, count, pace),), ((their_count, per_s, settings),) = ours, theirs
    assert count == their_count
    assert (way, per_s) == ("pipelined", -1) if per_s < 0 else (way, pace) == ("offered", per_s)
    assert {"acks", "linger.ms", "batch.size", "buffer.memory"} <= set(settings), "none is left to a default"
    assert compared.conditions["kafka"] == settings
    assert "2 of 3" in compared.conditions["platform_durability"]
    assert "all in-sync" in compared.conditions["kafka_durability"]


def test_no_figure_beside_kafka_is_published() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for paragraph in page.read_text().split("\n\n"):
            if "Kafka" in paragraph:
                assert re.search(r"\d(?:\.\d+)? ms\b|against \d", paragraph) is None, f"{page.name}: {paragraph}"
