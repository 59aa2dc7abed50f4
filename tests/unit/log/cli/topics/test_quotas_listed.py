"""`waltz quota list`: the rules of each server, in the order of its settings, and its refusals."""

from __future__ import annotations

import json
import re

import pytest

from waltz_log.cli.topics.quotas import show
from waltz_log.coordination.survey import ServerState
from waltz_log.server import ServerSettings
from waltz_log.testing import InMemoryCluster

RULES = [{"principal": "batch/*", "transactions_per_s": 1000.0}, {"topic": "shop/*", "bytes_per_s": 5e6, "mounts_per_s": 2.0, "burst_s": 10.0}]


async def test_the_rules_of_a_server_are_in_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    quotas = ServerSettings.model_validate({"coordinator": "memory/test", "quotas": RULES}).quotas
    async with InMemoryCluster(servers=1) as cluster:
        ((server, _),) = cluster.servers.values()
        monkeypatch.setattr(server, "_settings", server._settings.model_copy(update={"quotas": quotas}))
        found = server.statistics().quotas
    assert [(each.principal, each.topic, each.transactions_per_s, each.bytes_per_s, each.burst_s) for each in found] == [
        ("batch/*", None, 1000.0, None, 1.0),
        (None, "shop/*", None, 5e6, 10.0),
    ]


def test_rules_and_refusals_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    limits = {"principal": None, "topic": None, "transactions_per_s": None, "bytes_per_s": None, "mounts_per_s": None, "burst_s": 1.0}
    answered = ServerState(0, "a:1", True, {"quotas": [limits | rule for rule in RULES], "totals": {"append_refusals": 7, "mount_refusals": 1}})
    servers = [answered, ServerState(1, "b:1", False, {})]
    show(servers, "table")
    shown = capsys.readouterr().out
    assert re.search(r"0 +batch/\* +each +1,000 +- +- +1 s", shown)
    assert re.search(r"0 +each +shop/\* +- +5,000,000 +2 +10 s", shown)
    assert "server 0 refused 7 frames of appends and 1 mounts since it started" in shown
    assert "server 1 does not answer" in shown
    show(servers, "json")
    first = json.loads(capsys.readouterr().out)[0]
    assert [each["topic"] for each in first["quotas"]] == [None, "shop/*"]
    assert first["append_refusals"] == 7
