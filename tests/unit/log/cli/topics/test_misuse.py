"""Signs that a compaction topic should be another topic, as the document names them: an index as large as its segment, and a tiny key space."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from waltz_log.cli.topics import topics as command
from waltz_log.cli.topics.misuse import misuses
from waltz_log.cli.topics.topic_facts import partition_facts
from waltz_log.core.topics.catalogue import Policies, Topic
from waltz_log.core.topics.topic_names import TopicName
from waltz_log.testing import InMemoryCluster


def topic(kind: Any = "compaction") -> Topic:
    return Topic(TopicName("shop", "prices"), kind, (0, 1), kind == "compaction", {}, Policies(), 0)


def facts(keys: int, transactions: int, *, start: int = 0) -> list[dict[str, Any]]:
    """Two partitions. A replica that is behind does not count."""
    view = {"start": start, "bound": start + transactions // 2, "records": keys // 2, "bytes": 1}
    return [{"view": {"storage-0": {**view, "bound": start + 1, "records": 1}, "storage-1": view}} for _ in range(2)]


@pytest.mark.parametrize(("keys", "sign"), [(80_000, "nearly as large"), (79_998, None), (200, None), (198, "only 198 keys in 2 partitions")])
def test_an_index_as_large_as_its_segment_and_a_tiny_key_space_are_misuse(keys: int, sign: str | None) -> None:
    found = misuses(topic(), facts(keys, 100_000, start=7))
    assert [sign in each for each in found if sign] == ([] if sign is None else [True])
    assert len(found) == (sign is not None)


def test_a_young_topic_a_regular_topic_and_one_without_views_are_not_judged() -> None:
    assert misuses(topic(), facts(9_998, 9_998)) == []
    assert misuses(topic("regular"), facts(80_000, 100_000)) == []
    assert misuses(topic(), [{"view": {}}, {"view": None}]) == []


@pytest.mark.parametrize("output", ["table", "json"])
async def test_describe_and_alter_policy_warn(
    monkeypatch: pytest.MonkeyPatch, reached_in: Callable[[InMemoryCluster], Any], capsys: pytest.CaptureFixture[str], output: str
) -> None:
    async def with_keys(*arguments: Any) -> list[dict[str, Any]]:
        return [{**found, **made} for found, made in zip(await partition_facts(*arguments), facts(100, 100_000), strict=True)]

    async with InMemoryCluster(partitions=2, storages=1, servers=1) as cluster:
        await cluster.create_topic("shop/prices", 2, type="compaction")
        monkeypatch.setattr(command, "reached", reached_in(cluster))
        monkeypatch.setattr(command, "partition_facts", with_keys)
        capsys.readouterr()
        assert await command.describe("memory:1", "shop/prices", output=output, every_s=None, timeout_s=5.0) == 0
        described = capsys.readouterr()
        changes = ["retention_ms=7200000"]
        assert await command.alter_policy("memory:1", "shop/prices", changes, dry_run=True, output=output, timeout_s=5.0) == 0
        altered = capsys.readouterr()
    for printed in (described, altered):
        warnings = json.loads(printed.out)["warnings"] if output == "json" else re.findall("^waltz: .*", printed.err, re.MULTILINE)
        assert len(warnings) == 1
        assert "combine several such topics" in warnings[0]
