"""From a transaction to the row that it became, and back: the console's pages about pipelines and tables.

The table is made without Spark: rows, and the marks of the sink in the same commit.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake
from playwright.sync_api import expect

from tests.integration.log.console.browser import open_browser, open_page, save_screenshot, serious_problems
from tests.integration.log.console.served_console import ServedConsole, serve_console, wait_for
from waltz_delta.console.extension import DeltaPages, make_extension
from waltz_delta.marks.marks import app_id
from waltz_log.client import Lock
from waltz_log.client.transactions.transaction import lock_hash
from waltz_log.console.settings import ConsoleSettings
from waltz_log.errors import InvalidSetting, LockConflict
from waltz_log.testing import SyncInMemoryCluster
from waltz_log.testing.cluster import CLUSTER_KEY

PIPELINE = """
source: {{cluster: "127.0.0.1:1/none", topic: shop/orders}}
checkpoint: {folder}/checkpoint
outputs:
  - decode: {{format: json, columns: "order STRING, item STRING"}}
    target: {{table: {folder}/orders}}
  - decode: {{format: json, columns: "order STRING, item STRING"}}
    target: {{table: {folder}/by_item, mode: upsert, keys: [item]}}
dead_letters: {{table: {folder}/dead}}
"""

METRICS = """
waltz_pipeline_running{pipeline="shop"} 1
waltz_pipeline_lag_seconds{pipeline="shop"} 1.5
waltz_pipeline_phase_seconds{pipeline="shop",phase="addBatch"} 2.5
waltz_pipeline_phase_seconds{pipeline="shop",phase="walCommit"} 0.1
waltz_pipeline_next_transaction_id{pipeline="shop",partition="0"} 31
"""


class Shop(NamedTuple):
    served: ServedConsole
    loser: int
    folder: Path


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    folder = tmp_path_factory.mktemp("shop")
    (folder / "shop.yaml").write_text(PIPELINE.format(folder=folder))
    (folder / "wrong.yaml").write_text("outputs: <b>none</b>\n")
    (folder / "metrics.prom").write_text(METRICS)
    with SyncInMemoryCluster(partitions=2) as cluster:
        topic = cluster.create_topic("shop/orders", 1)
        (partition,) = topic.partitions
        client, rival = cluster.client(), cluster.client()
        orders, late = client.topic("shop/orders"), rival.topic("shop/orders")
        marks = late.high_water_marks()
        rows = []
        for number in range(30):
            data = {"order": f"A-{4700 + number}", "item": f"tea {number % 5}"}
            receipt = orders.append(json.dumps(data).encode(), write_locks=[Lock("order", 4700 + number)])
            rows.append({"partition": receipt.partition, "transaction_id": receipt.transaction_id, **data})
        with pytest.raises(LockConflict):
            late.append(b"{}", write_locks=[Lock("order", 4711)], high_water_mark=marks[0])
        properties = CommitProperties(app_transactions=[Transaction(app_id(str(CLUSTER_KEY), partition), receipt.transaction_id)])
        write_deltalake(folder / "orders", pa.Table.from_pylist(rows), commit_properties=properties)
        by_item = [{"order": row["order"], "item": row["item"]} for row in rows[-5:]]
        write_deltalake(folder / "by_item", pa.Table.from_pylist(by_item), commit_properties=properties)
        orders.append(b'{"order": "A-9999", "item": "coffee"}')
        asked = ConsoleSettings(cluster="memory:1", pipelines=(str(folder),), pipeline_metrics=(str(folder / "metrics.prom"),))
        pages = make_extension(asked)
        assert pages is not None
        with serve_console(cluster, extensions=[pages]) as served:
            yield Shop(served, rival.client_id, folder)


def test_pages_show_lag_versions_phases_and_what_is_wrong(shop: Shop) -> None:
    with shop.served.browser() as browser:
        pipelines = browser.get("/pipelines").text
        assert "addBatch" in pipelines
        assert "2.5 s" in pipelines
        assert "wrong file" in pipelines
        assert "<b>none</b>" not in pipelines
        assert pipelines.count(">behind<") == 2
        table = browser.get("/tables/0").text
        assert "tea 4" in table
        assert re.search(r'data-label="Lag">1<', table)
        assert browser.get("/tables/7").status_code == 400
        letters = browser.get("/pipelines/shop/dead-letters").text
        assert "jobs/replay_dead_letters.py --pipeline" in letters


def test_a_transaction_that_no_table_holds_yet_says_where_the_table_ends(shop: Shop) -> None:
    with shop.served.browser() as browser:
        (place,) = re.findall(r'class="id" href="(/transactions/\d+/\d+)"', browser.get("/transactions?text=A-9999").text)
        panel = browser.get(f"{place}/tables").text
        assert panel.count("not there yet") == 2
        assert "The table ends at transaction 29." in panel


REPLAY = """
import sys, time
from pathlib import Path

folder = Path(sys.argv[1])
print("landed table=orders", *sys.argv[2:], flush=True)
while not (folder / "go").exists():
    time.sleep(0.01)
sys.exit(3 if (folder / "fail").exists() else 0)
"""


def test_dead_letters_are_replayed_after_a_confirmation(tmp_path: Path) -> None:
    """The command is a stand-in for the Spark job, which tests of the sink run."""
    (tmp_path / "shop.yaml").write_text(PIPELINE.format(folder=tmp_path))
    (tmp_path / "replay.py").write_text(REPLAY)
    letters = {"partition": [0, 0], "transaction_id": [1, 2], "target": ["", ""], "reason": ["x", "x"]}
    never = {name: pa.array([None, None], pa.timestamp("us", "UTC")) for name in ("failed_at", "replayed_at")}
    write_deltalake(tmp_path / "dead", pa.table({**letters, **never}))
    command = shlex.join([sys.executable, str(tmp_path / "replay.py"), str(tmp_path)])
    asked = ConsoleSettings(cluster="memory:1", pipelines=(str(tmp_path),), replay_command=command)
    page, action, values = "/pipelines/shop/dead-letters", "/actions/replay-dead-letters", {"pipeline": "shop"}

    def pages() -> DeltaPages:
        made = make_extension(asked)
        assert made is not None
        return made

    with SyncInMemoryCluster(partitions=2) as cluster:
        with (
            serve_console(cluster, extensions=[pages()]) as served,
            served.browser() as browser,
        ):
            assert "Replay…" not in browser.get(page).text, "this console only reads"
            assert browser.get(action, params=values).status_code == 400
        with (
            serve_console(cluster, extensions=[pages()], allow_actions=True) as served,
            served.browser() as browser,
        ):
            assert "Replay…" in browser.get(page).text
            question = browser.get(action, params=values).text
            assert "2 dead letters of shop" in question
            assert "running" not in browser.get(page).text, "asking starts nothing"
            form = {**values, "token": served.console.token.value}
            assert browser.post(action, data=values).status_code == 400, "without the token of the form"
            assert browser.post(action, data=form).status_code == 303
            wait_for(lambda: "landed table=orders --pipeline" in browser.get(page).text)
            running = browser.get(page).text
            assert "running" in running
            assert "Replay…" not in running
            assert browser.post(action, data=form).status_code == 400, "one at a time"
            (tmp_path / "go").touch()
            wait_for(lambda: ">done<" in browser.get(page).text)
            (tmp_path / "fail").touch()
            assert browser.post(action, data=form).status_code == 303
            wait_for(lambda: "exit code 3" in browser.get(page).text)
            assert browser.get("/actions").text.count("2 dead letters of shop") == 2
            (tmp_path / "go").unlink()
            assert browser.post(action, data=form).status_code == 303
            wait_for(lambda: "running" in browser.get(page).text)
            pid = int(re.findall(r"in process (\d+)", browser.get("/actions").text)[0])
        assert not psutil.pid_exists(pid), "a console that stops leaves no process behind"


@pytest.mark.parametrize("command", ["", "spark-submit 'unfinished"])
def test_a_replay_command_that_has_no_words_is_refused(tmp_path: Path, command: str) -> None:
    with pytest.raises(InvalidSetting, match="replay_command"):
        make_extension(ConsoleSettings(cluster="a:1/b", pipelines=(str(tmp_path),), replay_command=command))


@pytest.mark.parametrize("address", ["http://example.com/metrics", "ftp://localhost/x", "https:///x", "https://[1/x"])
def test_metrics_of_other_machines_are_refused(address: str) -> None:
    with pytest.raises(InvalidSetting):
        make_extension(ConsoleSettings(cluster="a:1/b", pipeline_metrics=(address,)))


def test_a_newcomer_finds_a_transaction_its_conflict_and_its_row(shop: Shop) -> None:
    digits = lock_hash(("order", 4711)).hex()
    with open_browser() as browser:
        with open_page(browser, shop.served.url) as page:
            page.goto("/")
            page.get_by_role("link", name="Transactions", exact=True).click()
            page.get_by_label("Text in the payload").fill("A-4711")
            page.get_by_role("button", name="Search").click()
            page.locator("#rows a.id").click()
            expect(page.locator("pre.payload")).to_contain_text('"order": "A-4711"')
            conflicts = page.locator("section", has=page.get_by_role("heading", name="Conflicts", exact=True))
            expect(conflicts).to_contain_text(f"client {shop.loser}")
            expect(conflicts).to_contain_text(digits)
            tables = page.locator("section.panel", has=page.get_by_role("heading", name="Tables", exact=True))
            expect(tables).to_contain_text("version 0")
            row = tables.locator("table.rows").first
            expect(row).to_contain_text("A-4711")
            assert serious_problems(page) == []
            save_screenshot(page, "transaction")
            place = page.url
            tables.get_by_role("link", name="orders", exact=True).click()
            expect(page.locator("h1")).to_have_text("orders")
            page.go_back()
            page.locator("section.panel table.rows a.id").first.click()
            assert page.url == place, "from the row back to its transaction"
        for path in ("/pipelines", "/tables", "/tables/0", "/pipelines/shop/dead-letters"):
            for scheme, phone in (("light", False), ("dark", True)):
                with open_page(browser, shop.served.url, scheme=scheme, phone=phone) as page:
                    page.goto(path)
                    page.wait_for_load_state("networkidle")
                    assert serious_problems(page) == []
                    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0, path
                    if path == "/pipelines" and not phone:
                        save_screenshot(page, "pipelines")
