"""Dead letters, rows and output of a replay are payloads: the console shows them to callers who may read the topic, unless the topic is hidden."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

from tests.integration.log.console.served_console import serve_console, wait_for
from tests.integration.log.console.test_console_access import Site
from waltz_delta.console.extension import make_extension
from waltz_delta.marks.marks import app_id
from waltz_log.console.settings import ConsoleSettings
from waltz_log.coordination.access import topics_of
from waltz_log.core.topics.catalogue import Catalogue
from waltz_log.security.access import AccessControl
from waltz_log.security.authority import DevelopmentAuthority
from waltz_log.security.rules import AccessRules, Operation, Rule
from waltz_log.testing import SyncInMemoryCluster
from waltz_log.testing.cluster import CLUSTER_KEY

PIPELINE = """
source: {{cluster: "127.0.0.1:1/none", topic: hr/salaries}}
checkpoint: {folder}/checkpoint
outputs:
  - decode: {{format: json, columns: "name STRING, salary INT"}}
    target: {{table: {folder}/salaries}}
dead_letters: {{table: {folder}/dead}}
"""

QUOTED = "salary is the string 98765"
"""In the reason of a dead letter, in a row of the table, and in the output of the replay."""

COMMAND_SECRET = "swordfish"

PAGES = ("/pipelines", "/pipelines/hr/dead-letters", "/tables", "/tables/0")


def _make_tables(folder: Path, partition: int) -> None:
    never = pa.array([None], pa.timestamp("us", "UTC"))
    letter = {"partition": [partition], "transaction_id": [0], "target": [""], "reason": [QUOTED], "data": [QUOTED.encode()]}
    write_deltalake(folder / "dead", pa.table({**letter, "failed_at": never, "replayed_at": never}))
    marks = CommitProperties(app_transactions=[Transaction(app_id(str(CLUSTER_KEY), partition), 0)])
    rows = [{"partition": partition, "transaction_id": 0, "name": QUOTED, "salary": 98765}]
    write_deltalake(folder / "salaries", pa.Table.from_pylist(rows), commit_properties=marks)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("letters")
    authority = DevelopmentAuthority(folder / "certificates")
    control = AccessControl(enforced=True)
    (folder / "hr.yaml").write_text(PIPELINE.format(folder=folder))
    (folder / "replay.py").write_text(f"print({QUOTED!r})")
    replay = shlex.join([sys.executable, str(folder / "replay.py"), f"--password={COMMAND_SECRET}"])
    asked = ConsoleSettings(cluster="memory:1", pipelines=(str(folder),), replay_command=replay)
    pages = make_extension(asked)
    assert pages is not None
    with SyncInMemoryCluster(partitions=4, storages=1, servers=1) as cluster:
        (partition,) = cluster.create_topic("hr/salaries", 1).partitions
        cluster.create_topic("shop/orders", 1)
        _make_tables(folder, partition)
        served_with = {"tls": authority.issue("operator", "console", serve=True), "allow_actions": True, "control": control}
        with serve_console(cluster, extensions=[pages], **served_with) as served:  # type: ignore[arg-type]
            site = Site(served, authority, control, folder / "audit.jsonl")
            rules = AccessRules(
                rules=(
                    Rule(principal="spiffe://waltz/reader/hr", operations=(Operation.READ,), resource="hr/*"),
                    Rule(principal="spiffe://waltz/reader/shop", operations=(Operation.READ,), resource="shop/*"),
                )
            )
            control.replace(rules, topics_of(Catalogue()))
            with site.visitor("operator", "ann") as browser:
                wait_for(lambda: "hr/salaries" in browser.get("/topics").text)
                sample = served.console.sampler._sample
                assert sample is not None
                control.replace(rules, topics_of(sample.catalogue))
                assert browser.post("/actions/replay-dead-letters", data=_form(served.console.token.value)).status_code == 303
                wait_for(lambda: ">done<" in browser.get("/pipelines/hr/dead-letters").text)
            yield site


def _form(token: str) -> dict[str, str]:
    return {"pipeline": "hr", "token": token}


def _shown(site: Site, role: str, name: str) -> dict[str, bool]:
    with site.visitor(role, name) as browser:
        answers = {path: browser.get(path) for path in PAGES}
    assert {each.status_code for each in answers.values()} == {200}
    return {path: QUOTED in each.text or "98765" in each.text for path, each in answers.items()}


@pytest.mark.parametrize(("role", "name"), [("operator", "ann"), ("reader", "hr")])
def test_a_caller_who_may_read_the_topic_sees_reasons_rows_and_output(site: Site, role: str, name: str) -> None:
    assert _shown(site, role, name) == {"/pipelines": False, "/pipelines/hr/dead-letters": True, "/tables": False, "/tables/0": True}


@pytest.mark.parametrize(("role", "name"), [("reader", "shop"), ("reader", "nothing")])
def test_a_caller_who_may_not_read_the_topic_sees_none(site: Site, role: str, name: str) -> None:
    assert not any(_shown(site, role, name).values())
    with site.visitor(role, name) as browser:
        page = browser.get("/pipelines/hr/dead-letters").text
    assert page.count("hidden, like the payloads of its topic") == 2, "the reason and the payload"
    assert "Its output is hidden" in page
    assert COMMAND_SECRET not in page


def test_the_configured_command_is_shown_to_callers_who_may_run_it(site: Site) -> None:
    with site.visitor("operator", "ann") as browser:
        assert COMMAND_SECRET in browser.get("/pipelines/hr/dead-letters").text
    with site.visitor("reader", "hr") as browser:
        assert COMMAND_SECRET not in browser.get("/pipelines/hr/dead-letters").text


def test_a_reader_sees_none_after_the_topic_was_deleted(site: Site) -> None:
    """Its partition belongs to no topic, or later to another one, which the caller may read."""
    before, catalogue = site.control.rules, Catalogue()
    sample = site.served.console.sampler._sample
    assert sample is not None
    try:
        others = {name: topic for name, topic in sample.catalogue.topics.items() if str(name) == "shop/orders"}
        catalogue = Catalogue(topics=others)
        site.control.replace(before, topics_of(catalogue))
        site.served.console.sampler._sample = type(sample)(sample.survey, catalogue, (), sample.at_ms)
        with site.visitor("reader", "shop") as browser:
            assert QUOTED not in browser.get("/pipelines/hr/dead-letters").text
            assert QUOTED not in browser.get("/tables/0").text
    finally:
        site.control.replace(before, topics_of(sample.catalogue))
        site.served.console.sampler._sample = sample


def test_a_hidden_topic_shows_none_to_any_caller(tmp_path: Path) -> None:
    (tmp_path / "hr.yaml").write_text(PIPELINE.format(folder=tmp_path))
    with SyncInMemoryCluster(partitions=2, storages=1, servers=1) as cluster:
        (partition,) = cluster.create_topic("hr/salaries", 1).partitions
        _make_tables(tmp_path, partition)
        pages = make_extension(ConsoleSettings(cluster="memory:1", pipelines=(str(tmp_path),)))
        assert pages is not None
        with (
            serve_console(cluster, extensions=[pages], hidden_topics=("hr/*",)) as served,
            httpx.Client(base_url=served.url, timeout=20) as browser,
        ):
            wait_for(lambda: "hr/salaries" in browser.get("/topics").text)
            for path in PAGES:
                answer = browser.get(path)
                assert answer.status_code == 200
                assert QUOTED not in answer.text, path
