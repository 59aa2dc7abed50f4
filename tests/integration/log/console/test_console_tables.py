"""From a transaction to the row that it became, and back: the console's pages about pipelines and tables.

The table is made without Spark: rows, and the marks of the sink in the same commit.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import time
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
    later_s = time.time() + 3600  # as if the job went on writing it
    os.utime(folder / "metrics.prom", (later_s, later_s))
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


def test_rows_show_keys_and_columns_of_the_business_first(shop: Shop) -> None:
    with shop.served.browser() as browser:
        heads = [re.findall(r"<th>(\w+)</th>", browser.get(f"/tables/{number}").text.split("newest rows")[1]) for number in (0, 1)]
    assert heads == [["Transaction", "order", "item", "partition", "transaction_id"], ["item", "order"]]


def test_a_table_that_does_not_exist_yet_is_no_alarm(tmp_path: Path) -> None:
    (tmp_path / "shop.yaml").write_text(PIPELINE.format(folder=tmp_path))
    pages = make_extension(ConsoleSettings(cluster="memory:1", pipelines=(str(tmp_path),)))
    assert pages is not None
    with SyncInMemoryCluster(partitions=2) as cluster:
        cluster.create_topic("shop/orders", 1)
        with serve_console(cluster, extensions=[pages]) as served, served.browser() as browser:
            table = browser.get("/tables/0").text
            assert "There is no table yet. Its pipeline makes it with its first batch." in table
            letters = browser.get("/pipelines/shop/dead-letters").text
            assert "No dead letters to replay." in letters
            for page in (table, letters, browser.get("/tables").text, browser.get("/pipelines").text):
                assert "notice bad" not in page
                assert "behind" not in page
                assert "pill bad" not in page


def test_a_table_that_cannot_be_read_has_no_lag(tmp_path: Path) -> None:
    (tmp_path / "shop.yaml").write_text(PIPELINE.format(folder=tmp_path))
    pages = make_extension(ConsoleSettings(cluster="memory:1", pipelines=(str(tmp_path),)))
    assert pages is not None
    with SyncInMemoryCluster(partitions=2) as cluster:
        cluster.create_topic("shop/orders", 1)
        cluster.client().topic("shop/orders").append(b"{}")
        log = tmp_path / "orders" / "_delta_log"
        log.mkdir(parents=True)
        (log / "00000000000000000000.json").write_text("damaged")
        with serve_console(cluster, extensions=[pages]) as served, served.browser() as browser:
            row = browser.get("/tables").text.split("/tables/0")[1].split("</tr>")[0]
    assert 'data-label="Lag">–<' in row
    assert "behind" not in row


def test_metrics_of_a_job_that_stopped_writing_them_are_not_shown(tmp_path: Path) -> None:
    (tmp_path / "shop.yaml").write_text(PIPELINE.format(folder=tmp_path))
    file = tmp_path / "metrics.prom"
    file.write_text(METRICS)
    pages = make_extension(ConsoleSettings(cluster="memory:1", pipelines=(str(tmp_path),), pipeline_metrics=(str(file),)))
    assert pages is not None
    with SyncInMemoryCluster(partitions=2) as cluster, serve_console(cluster, extensions=[pages]) as served, served.browser() as browser:
        assert ">running<" in browser.get("/pipelines").text
        os.utime(file, (0, 0))
        old = browser.get("/pipelines").text
    assert ">running<" not in old
    assert "its job has ended, or it hangs" in old


def write_letters(folder: Path, partition: int, count: int, replayed: int) -> None:
    """The first of them landed by a replay. Transaction 0 was meant for the table of orders, the others for none."""
    never = pa.array([None] * count, pa.timestamp("us", "UTC"))
    moment = pa.array([0 if at < replayed else None for at in range(count)], pa.timestamp("us", "UTC"))
    letters = {
        "cluster": [str(CLUSTER_KEY)] * count,
        "target": [str(folder / "orders") if at == replayed else "" for at in range(count)],
        "partition": [partition] * count,
        "transaction_id": list(range(count)),
        "data": [b'{"broken": %d' % at for at in range(count)],
        "reason": [f"not JSON {at}" for at in range(count)],
    }
    write_deltalake(folder / "dead", pa.table({**letters, "failed_at": never, "replayed_at": moment}))


LONG = "a_name_that_is_longer_than_the_screen_of_a_phone_and_has_no_place_to_break"

LONG_PIPELINE = """
name: {name}
source: {{cluster: "127.0.0.1:1/none", topic: {topic}}}
checkpoint: {folder}/checkpoint
outputs: [{{target: {{table: {folder}/{name}}}}}]
dead_letters: {{table: {folder}/dead}}
"""


@pytest.mark.parametrize("width", [320, 390])
def test_nothing_is_wider_than_a_phone_however_long_names_and_values_are(tmp_path: Path, width: int) -> None:
    topic = f"warehouse/{LONG[:60]}"
    (tmp_path / "long.yaml").write_text(LONG_PIPELINE.format(folder=tmp_path, name=LONG, topic=topic))
    pages = make_extension(ConsoleSettings(cluster="memory:1", pipelines=(str(tmp_path),)))
    assert pages is not None
    with SyncInMemoryCluster(partitions=2) as cluster:
        (partition,) = cluster.create_topic(topic, 1, keyed=True).partitions
        for _ in range(3):
            cluster.client().topic(topic).append(b"x" * 400, key=b"k" * 300)
        write_letters(tmp_path, partition, 3, replayed=0)
        marks = CommitProperties(app_transactions=[Transaction(app_id(str(CLUSTER_KEY), partition), 2)])
        rows = [{"order": "w" * 300, "partition": partition, "transaction_id": 2}]
        write_deltalake(tmp_path / LONG, pa.Table.from_pylist(rows), commit_properties=marks)
        place = f"/transactions/{partition}"
        paths = ["/", "/partitions", f"/partitions/{partition}", "/transactions", f"{place}/1", f"{place}/2", "/topics", f"/topics/{topic}", "/nodes"]
        paths += [
            "/pipelines",
            "/tables",
            "/tables/0",
            f"/pipelines/{LONG}/dead-letters",
            f"/actions/change-policy?topic={topic}&policy=mirror&value=1",
        ]
        with serve_console(cluster, extensions=[pages], allow_actions=True) as served, open_browser() as browser:
            page = browser.new_page(viewport={"width": width, "height": 800})
            wide = {}
            for path in paths:
                page.goto(served.url + path)
                page.wait_for_load_state("networkidle")
                wide[path] = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert page.locator(".side nav").evaluate("element => element.scrollWidth - element.clientWidth") <= 0
    assert {path: by for path, by in wide.items() if by > 0} == {}


def test_a_dead_letter_is_said_to_be_one_and_all_are_found_page_by_page(tmp_path: Path) -> None:
    (tmp_path / "shop.yaml").write_text(PIPELINE.format(folder=tmp_path))
    pages = make_extension(ConsoleSettings(cluster="memory:1", pipelines=(str(tmp_path),)))
    assert pages is not None
    with SyncInMemoryCluster(partitions=2) as cluster:
        (partition,) = cluster.create_topic("shop/orders", 1).partitions
        orders = cluster.client().topic("shop/orders")
        for number in range(45):
            orders.append(b'{"broken": %d' % number)
        write_letters(tmp_path, partition, 44, replayed=1)
        marks = CommitProperties(app_transactions=[Transaction(app_id(str(CLUSTER_KEY), partition), 44)])
        landed = [{"order": "A", "item": "tea", "partition": partition, "transaction_id": 0}]
        write_deltalake(tmp_path / "orders", pa.Table.from_pylist(landed), commit_properties=marks)
        with serve_console(cluster, extensions=[pages]) as served, served.browser() as browser:
            wait_for(lambda: f"/transactions/{partition}/44" in browser.get("/transactions?topic=shop/orders").text)

            def panel(number: int) -> str:
                return browser.get(f"/transactions/{partition}/{number}/tables").text.split("<h3>")[1]

            dead = panel(1)
            assert ">dead letter<" in dead
            assert "not JSON 1" in dead
            assert "No row" not in dead
            assert "at the latest" not in dead
            assert ">dead letter<" in panel(7), "no route accepts it"
            assert "A replay landed it" in panel(0)
            assert "No row from this transaction." in panel(44)
            found: list[str] = []
            page = "/pipelines/shop/dead-letters"
            while page:
                text = browser.get(page).text
                found += re.findall(rf'class="id" href="/transactions/{partition}/(\d+)"', text)
                assert "{&#34;broken&#34;:" in text, "with payload"
                following = re.search(r'rel="next" href="([^"]+)"', text)
                page = following[1] if following else ""
            assert found == [str(at) for at in range(1, 44)]
            assert "43 to replay" in text
            assert browser.get("/pipelines/shop/dead-letters?page=99").text.count('class="id"') == 3


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
