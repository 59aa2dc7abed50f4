"""The console's pages over HTTP: what they show, what they never show, and whom they refuse."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any
from urllib.parse import unquote

import httpx
import pytest

from tests.integration.log.console.served_console import ServedConsole, serve_console, wait_for
from waltz_log.cli.cluster.replica_moves import MoveRunner, read_replicas
from waltz_log.client import Lock
from waltz_log.client.transactions.transaction import lock_hash
from waltz_log.console.pages import transactions
from waltz_log.console.pages.tail import ROWS_PER_S
from waltz_log.console.reading.following import BYTES_MAX, ROWS_MAX
from waltz_log.console.reading.sampling import RARE_FACTOR, Sampler
from waltz_log.console.security import POLICY
from waltz_log.coordination.placement import drain_node, record_moves
from waltz_log.core.metadata import ReplicaMove
from waltz_log.core.ports import Channel
from waltz_log.core.replica_moves import plan_drain
from waltz_log.errors import ClusterUnavailable, LockConflict
from waltz_log.testing import SyncInMemoryCluster
from waltz_log.testing.known_servers import KnownServers
from waltz_log.transport import waltz_pb2 as pb

HOSTILE = b'{"name": "<script>alert(1)</script><img src=x onerror=alert(2)>", "ansi": "\\u001b[31m"} \x1b[2J'
LIFE = {"partitions": 4, "storages": 3, "servers": 2}


@pytest.fixture(scope="module")
def cluster() -> Iterator[SyncInMemoryCluster]:
    with SyncInMemoryCluster(**LIFE) as cluster:
        cluster.create_topic("shop/orders", 2, keyed=True)
        cluster.create_topic("shop/secrets", 1)
        client = cluster.client()
        orders, secrets = client.topic("shop/orders"), client.topic("shop/secrets")
        for number in range(120):
            orders.append(json.dumps({"order": number, "city": "Zürich"}).encode(), key=b"customer-%d" % (number % 7), header=number % 3)
        secrets.append(b"the password is swordfish")
        client.append(3, HOSTILE)
        client.append(3, b"x" * 1_000_000)
        yield cluster


@pytest.fixture(scope="module")
def served(cluster: SyncInMemoryCluster) -> Iterator[ServedConsole]:
    with serve_console(cluster, hidden_topics=("shop/secr*",), tails_max=2) as served:
        yield served


@pytest.fixture
def browser(served: ServedConsole) -> Iterator[httpx.Client]:
    with served.browser() as client:
        yield client


def elements(page: str) -> list[tuple[str, dict[str, str]]]:
    """The tags of a page as a browser reads them."""
    found: list[tuple[str, dict[str, str]]] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            found.append((tag, {name: value or "" for name, value in attrs}))

    Reader().feed(page)
    assert found
    return found


PAGES = ["/", "/partitions", "/partitions?show=degraded", "/partitions/0", "/transactions", "/conflicts", "/topics", "/topics/shop/orders", "/nodes"]


@pytest.mark.parametrize("path", [*PAGES, "/transactions/3/0", "/transactions/3/1", "/no/such/page", "/transactions/9/1", "/transactions/0/999999"])
def test_every_page_is_guarded_and_self_contained(browser: httpx.Client, path: str) -> None:
    answer = browser.get(path)
    assert answer.headers["content-security-policy"] == POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "Traceback" not in answer.text
    for tag, attributes in elements(answer.text):
        assert tag not in ("style", "iframe", "object", "embed")
        assert tag != "script" or attributes["src"].startswith("/static/")
        assert not [name for name in attributes if name == "style" or name.startswith("on")], "the policy allows nothing inline"
        for name in ("src", "href", "action", "hx-get"):
            assert attributes.get(name, "/").startswith(("/", "#")), attributes
            assert not attributes.get(name, "/").startswith("//")
    assert answer.status_code == (200 if path in PAGES or path.startswith("/transactions/3/") else 404 if "9999" in path or "no" in path else 400)


def test_a_transaction_is_found_by_text_key_header_time_and_id(browser: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "SEARCH_BUDGET_S", 20.0)  # on a busy machine, a page's time would end before the search does

    def ids(**query: str) -> list[str]:
        return re.findall(r'href="(/transactions/\d+/\d+)"', browser.get("/transactions", params=query).text)

    (found,) = ids(text='"order": 77,')
    page = browser.get(found).text
    assert "customer-0" in page
    assert len(ids(text="Zürich")) == 50
    assert found in ids(key="customer-0", topic="shop/orders")
    assert len(ids(key="customer-0", topic="shop/orders")) == 18
    assert len(ids(header="2", topic="shop/orders")) == 40
    assert ids(id=found.rpartition("/")[2], partition=found.split("/")[2]) == []  # leads there
    assert browser.get("/transactions", params={"id": found.rpartition("/")[2], "partition": found.split("/")[2]}).headers["location"] == found
    assert ids(time="2020-01-01T00:00") == []
    assert len(ids(time="2099-01-01T00:00")) == 50
    assert "Nothing matches" in browser.get("/transactions?text=nowhere").text


def test_older_pages_show_every_transaction_once(browser: httpx.Client) -> None:
    page = browser.get("/transactions?topic=shop/orders").text
    found = []
    while True:
        found += re.findall(r'class="id" href="(/transactions/\d+/\d+)"', page)
        following = re.search(r'hx-get="(/transactions/more[^"]*)"', page)
        if following is None:
            break
        page = browser.get(following[1].replace("&amp;", "&")).text
    assert len(found) == len(set(found)) == 120


def test_a_hostile_payload_is_text(browser: httpx.Client) -> None:
    for path in ("/transactions/3/0", "/transactions?partition=3"):
        text = browser.get(path).text
        assert "<script>alert" not in text
        assert "<img src=x" not in text
        assert "\x1b" not in text
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    raw = browser.get("/transactions/3/0/raw")
    assert raw.content == HOSTILE
    assert raw.headers["content-type"] == "application/octet-stream"
    assert raw.headers["content-disposition"].startswith("attachment")


def test_a_large_payload_is_cut_and_can_be_downloaded(browser: httpx.Client) -> None:
    page = browser.get("/transactions/3/1")
    assert len(page.content) < 100_000
    assert "The first 65.5 kB of 1.0 MB" in page.text
    assert len(browser.get("/transactions/3/1/raw").content) == 1_000_000


def test_hidden_payloads_are_not_shown_searched_or_downloaded(browser: httpx.Client, served: ServedConsole) -> None:
    (topic,) = re.findall(r'href="(/topics/shop/secrets)"', browser.get("/topics").text)
    listing = browser.get("/transactions?topic=shop/secrets").text
    (place,) = re.findall(r'class="id" href="(/transactions/\d+/\d+)"', listing)
    searched = browser.get("/transactions?text=swordfish").text
    assert 'class="id"' not in searched
    assert "its payloads are hidden, and not searched" in searched
    for path in (topic, place, "/transactions?topic=shop/secrets"):
        assert "swordfish" not in browser.get(path).text
    refused = browser.get(f"{place}/raw")
    assert refused.status_code == 403
    assert b"swordfish" not in refused.content


def test_only_the_loopback_and_only_its_own_pages_are_answered(browser: httpx.Client) -> None:
    assert browser.get("/", headers={"host": "evil.example"}).status_code == 403
    assert browser.get("/", headers={"host": "127.0.0.1.evil.example"}).status_code == 403
    for host in ("[", "evil.example@127.0.0.1", "127.0.0.1:1:2", "127.0.0.1/", "", "a" * 5000):
        assert browser.get("/", headers={"host": host}).status_code == 400, host
    own = str(browser.base_url).rstrip("/")
    foreign = ("http://evil.example", "null", "http://[", own.replace("http:", "https:"), f"{own}@evil.example")
    for headers in ({"sec-fetch-site": "cross-site"}, *({"origin": each} for each in foreign)):
        assert browser.post("/actions/remove-subscriber", headers=headers).status_code == 403, headers
    with httpx.Client(base_url=own, timeout=20) as without_origin:
        assert without_origin.post("/actions/remove-subscriber").status_code == 403


def test_a_request_that_a_proxy_passed_on_is_refused_without_tls(browser: httpx.Client) -> None:
    for name in ("x-forwarded-for", "X-Forwarded-Host", "x-forwarded-proto", "forwarded", "via", "x-real-ip", "x-forwarded-anything-else"):
        refused = browser.get("/", headers={name: "10.0.0.7"})
        assert refused.status_code == 403, name
        assert "proxy" in refused.text
    url = browser.base_url
    with socket.create_connection((url.host, url.port or 80), timeout=20) as connection:
        connection.sendall(f"GET /livez HTTP/1.0\r\nHost: {url.host}:{url.port}\r\n\r\n".encode())  # as nginx does unless it is configured
        assert b" 403 " in connection.recv(100)


def test_a_console_that_only_reads_offers_and_runs_no_action(browser: httpx.Client) -> None:
    assert "/actions" not in browser.get("/topics").text
    for answer in (browser.get("/actions/remove-subscriber?name=x"), browser.post("/actions/remove-subscriber", data={"name": "x"})):
        assert answer.status_code == 400
        assert "--allow-actions" in answer.text


def test_an_action_asks_first_and_needs_the_form_of_this_console(cluster: SyncInMemoryCluster) -> None:
    with (
        serve_console(cluster, allow_actions=True) as served,
        served.browser() as browser,
    ):
        values = {"topic": "shop/orders", "policy": "retention_bytes", "value": "5000000"}
        asked = browser.get("/actions/change-policy", params=values)
        assert "Set retention_bytes of the topic shop/orders to 5000000?" in asked.text
        assert "5000000" not in browser.get("/topics/shop/orders").text, "asking changes nothing"
        assert browser.post("/actions/change-policy", data=values).status_code == 400
        assert browser.post("/actions/change-policy", data={**values, "token": "wrong"}).status_code == 400
        assert "5000000" not in browser.get("/topics/shop/orders").text
        token = re.search(r'name="token" value="([^"]+)"', asked.text)
        assert token is not None
        done = browser.post("/actions/change-policy", data={**values, "token": token[1]})
        assert (done.status_code, done.headers["location"]) == (303, "/topics/shop/orders")
        assert "5000000" in browser.get("/topics/shop/orders").text
        assert "policy retention_bytes of shop/orders to 5000000" in browser.get("/actions").text
        wrong = browser.post("/actions/change-policy", data={**values, "value": "<b>many</b>", "token": token[1]})
        assert wrong.status_code == 503 or wrong.status_code == 400
        assert "<b>" not in wrong.text


def test_a_partition_is_moved_and_a_server_drained_and_readmitted() -> None:
    with (
        SyncInMemoryCluster(partitions=4, servers=2) as cluster,
        serve_console(cluster, allow_actions=True) as served,
        served.browser() as browser,
    ):

        def act(action: str, **values: str) -> str:
            """What the console asked."""
            asked = browser.get(f"/actions/{action}", params=values)
            done = browser.post(f"/actions/{action}", data={**values, "token": served.console.token.value})
            assert done.status_code == 303, done.text
            return asked.text

        def drainable() -> list[str]:
            return [unquote(each) for each in re.findall(r"/actions/drain-server\?server=([^\"]+)", browser.get("/nodes").text)]

        wait_for(lambda: len(drainable()) == 2)
        addresses = drainable()
        owner = re.compile(r"<dt>Owner</dt><dd>server (\d+)")
        wait_for(lambda: owner.search(browser.get("/partitions/0").text) is not None)  # a server serves before its owner is on the page
        page = browser.get("/partitions/0").text
        before = owner.search(page)
        assert before is not None
        (other,) = set(re.findall(r'<option value="(\d+)"', page)) - {before[1]}
        assert f"partition 0 to server {other}" in act("move-owner", partition="0", server=other)
        wait_for(lambda: f"<dt>Owner</dt><dd>server {other}" in browser.get("/partitions/0").text)
        act("release-owner", partition="0")
        asked = act("drain-server", server=addresses[0])
        assert "gets no partitions" in asked
        wait_for(lambda: "Drained: it gets no partitions." in browser.get("/nodes").text)
        last = browser.get("/actions/drain-server", params={"server": addresses[1]})
        assert last.status_code == 400
        assert "last log server" in last.text
        act("readmit-server", server=addresses[0])
        wait_for(lambda: "Drained:" not in browser.get("/nodes").text)
        for action, values in (("move-owner", {"partition": "<b>", "server": "0"}), ("drain-server", {"server": "<b>"})):
            wrong = browser.get(f"/actions/{action}", params=values)
            assert wrong.status_code == 400
            assert "<b>" not in wrong.text


def test_the_page_of_nodes_shows_how_to_drain_a_storage_node_and_how_far_it_is() -> None:
    with (
        SyncInMemoryCluster(partitions=2, servers=1) as cluster,
        serve_console(cluster) as served,
        served.browser() as browser,
    ):
        inner = cluster._cluster
        coordinator = inner.ensemble.session()
        cluster.start_storage("storage-3")  # holds nothing yet

        def card(name: str) -> str:
            page = browser.get("/nodes").text
            (found,) = [each for each in page.split("<article") if f"<h3>{name} " in each]
            return found

        plain = card("storage-1")
        assert "waltz drain $COORDINATOR storage-1\n" in plain
        assert "Only the command line drains a storage node" in plain
        assert "undo" not in plain

        async def begin() -> list[ReplicaMove]:
            replicas = await read_replicas(coordinator)
            await drain_node(coordinator, "storage-1")
            moves, _ = plan_drain(replicas, "storage-1", [f"storage-{each}" for each in (0, 2, 3)])
            await record_moves(coordinator, begun=moves[:1])
            return moves

        moves = cluster.call(begin())
        wait_for(lambda: "2 replicas left, 1 being moved" in card("storage-1"))
        wait_for(lambda: f"partition {moves[0].partition}</a> moves to <b>{moves[0].add}</b>" in card("storage-1"))
        assert "waltz drain $COORDINATOR storage-1 --undo" in card("storage-1")
        assert "draining" not in card("storage-0")

        async def complete() -> None:
            runner = MoveRunner(coordinator, inner.network, "memory/test", 2, 20.0, lambda line: None)
            await runner.run(moves)
            assert not runner.failed

        cluster.call(complete())
        wait_for(lambda: "Drained: it holds no replica and gets none." in card("storage-1"))
        wait_for(lambda: "moves to" not in card("storage-1"))
        assert "waltz drain $COORDINATOR storage-1\n" not in card("storage-1")


def test_live_tails_are_bounded_and_free_their_place(cluster: SyncInMemoryCluster, served: ServedConsole) -> None:
    client = cluster.client()
    with served.browser() as browser:
        with browser.stream("GET", "/transactions/tail?partition=3") as one, browser.stream("GET", "/transactions/tail?partition=3"):
            lines = one.iter_lines()
            assert next(lines) == "retry: 5000"
            assert browser.get("/transactions/tail").status_code == 503
            for number, line in enumerate(lines):
                client.append(3, b"tail <b>%d</b>" % number)
                if line.startswith("event: rows"):
                    break
            assert "tail &lt;b&gt;" in "".join(line for line, _ in zip(lines, range(20), strict=False))
        wait_for(lambda: not _busy(served))


def _busy(served: ServedConsole) -> bool:
    with (
        served.browser() as browser,
        browser.stream("GET", "/transactions/tail?partition=3") as answer,
    ):
        return answer.status_code == 503


def test_a_live_tail_of_a_fast_log_reads_little_and_says_what_it_skipped(
    cluster: SyncInMemoryCluster, served: ServedConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = cluster.client()
    requests: list[pb.ReadRequest] = []
    connect = served.console.link.channel

    class Counting:
        def __init__(self, channel: Channel) -> None:
            self.call = channel.call
            self._read = channel.read

        def read(self, method: Any, request: pb.ReadRequest) -> Any:
            requests.append(request)
            return self._read(method, request)

    monkeypatch.setattr(served.console.link, "channel", lambda address: Counting(connect(address)))
    began, committed, rows, skipped = client.high_water_mark(3), 0, 0, 0
    with (
        served.browser() as browser,
        browser.stream("GET", "/transactions/tail?partition=3") as tail,
    ):
        lines = tail.iter_lines()
        assert any(line == ": nothing new" for line in lines)  # the place where it begins is set
        start_s = time.monotonic()
        while (spent_s := time.monotonic() - start_s) < 2 or client.high_water_mark(3) - began < 3 * (ROWS_PER_S * spent_s + ROWS_MAX):
            for future in [client.append_nowait(3, b"fast") for _ in range(100)]:
                future.result(20)
        committed = client.high_water_mark(3) - began
        for line in lines:
            rows += line.startswith("data: ") and line.endswith("<tr>")
            found = re.search(r'class="note">([\d,]+) skipped<', line)
            skipped += int(found[1].replace(",", "")) if found else 0
            if rows + skipped >= committed:
                break
        took_s = time.monotonic() - start_s
    assert rows + skipped == committed
    assert skipped > 0
    read = sum(each.last_transaction_id - each.first_transaction_id + 1 for each in requests)
    assert rows <= read <= ROWS_PER_S * took_s + 2 * ROWS_MAX  # of the first poll, and of what had arrived at the last
    assert {(each.runs_max, each.max_bytes) for each in requests} == {(1, BYTES_MAX)}


@pytest.mark.parametrize("hidden", [(), ("shop/secr*",)], ids=["nothing-hidden", "topics-hidden"])
def test_a_live_tail_surveys_often_only_if_the_catalogue_decides_what_it_shows(cluster: SyncInMemoryCluster, hidden: tuple[str, ...]) -> None:
    surveys: list[float] = []

    class Counting(Sampler):
        async def _survey(self) -> None:
            surveys.append(time.monotonic())
            await super()._survey()

    with (
        serve_console(cluster, hidden_topics=hidden) as served,
        served.browser() as browser,
    ):
        served.console.sampler.__class__ = Counting
        with browser.stream("GET", "/transactions/tail?partition=3") as tail:
            begun_s, often = time.monotonic(), False
            for _ in zip(range(40 if hidden else 12), tail.iter_lines(), strict=False):  # two lines each half second
                often = len(surveys) > (time.monotonic() - begun_s) / (RARE_FACTOR * 0.2) + 2
                if often:
                    break
    assert often == bool(hidden)


def test_a_conflict_names_winner_loser_and_lock(cluster: SyncInMemoryCluster, browser: httpx.Client) -> None:
    winner, loser = cluster.client(), cluster.client()
    mark = loser.high_water_mark(3)
    won = winner.append(3, b"the seat is mine", write_locks=[Lock("seat", "12A")])
    with pytest.raises(LockConflict):
        loser.append(3, b"mine", write_locks=[Lock("seat", "12A")], high_water_mark=mark)
    digits = lock_hash(("seat", "12A")).hex()
    place = f"/transactions/3/{won.transaction_id}"
    wait_for(lambda: digits in browser.get(place).text)
    assert f"<b>{loser.client_id}</b>" in browser.get(place).text
    page = browser.get("/conflicts?name=seat&key=12A").text
    assert digits in page
    assert f'href="{place}"' in page
    assert f"client {loser.client_id}, sequence" in page


def test_what_is_known_is_shown_while_the_cluster_falls_apart() -> None:
    with SyncInMemoryCluster(**LIFE) as cluster:
        client = cluster.client()
        for number in range(20):
            client.append(0, b"before %d" % number)
        with serve_console(cluster) as served, served.browser() as browser:
            wait_for(lambda: "before 19" in browser.get("/transactions").text)
            cluster.kill_storage("storage-1")
            wait_for(lambda: "Storage node storage-1 does not answer." in browser.get("/").text)
            wait_for(lambda: "unreachable" in browser.get("/partitions/0").text)
            for name in ("server-0", "server-1"):
                cluster.kill_server(name)
            wait_for(lambda: "Partition 0 has no owner that answers" in browser.get("/").text)
            listing = browser.get("/transactions?partition=0").text
            assert "before 19" in listing, listing[listing.index("<tbody") :]
            assert browser.get("/transactions/0/19").status_code == 200
            assert "<h2>No answer</h2>" in browser.get("/transactions/0/19/replicas", headers={"hx-request": "true"}).text
            for name in ("storage-0", "storage-2"):
                cluster.kill_storage(name)
            for path in PAGES[:6]:
                assert browser.get(path).status_code == 200, path
            gone = browser.get("/transactions/0/19")
            assert (gone.status_code, "Traceback" in gone.text) == (503, False)


def test_a_topic_shows_how_much_is_appended_to_it(cluster: SyncInMemoryCluster, browser: httpx.Client) -> None:
    secrets = cluster.client().topic("shop/secrets")

    def rates() -> list[float]:
        secrets.append(b"more")
        page = browser.get("/topics").text.split("/topics/shop/secrets")[1].split("</tr>")[0]
        return [float(each.replace(",", "")) for each in re.findall(r'data-label="Appended per second">([\d.,]+)<', page)]

    wait_for(lambda: rates() > [0.0])


def level(browser: httpx.Client) -> str:
    found = re.search(r'data-level="(\w+)"', browser.get("/state").text)
    assert found is not None
    return found[1]


def test_a_page_of_a_cluster_that_stopped_has_no_data_and_says_how_old_it_is() -> None:
    with SyncInMemoryCluster(**LIFE) as cluster, serve_console(cluster) as served, served.browser() as browser:
        wait_for(lambda: "Healthy" in browser.get("/").text)
        assert level(browser) == "ok"
        for name in ("server-0", "server-1", "storage-0", "storage-1", "storage-2"):
            (cluster.kill_server if name.startswith("server") else cluster.kill_storage)(name)
        wait_for(lambda: level(browser) == "bad")
        assert re.search(r"No data for \d", browser.get("/state").text)
        page = browser.get("/").text
        assert re.search(r"The cluster does not answer.</strong> What you see is \d.* old. no log server and no storage node answers", page)
        assert "Healthy" not in page
        assert 'class="stale"' in page


def test_a_survey_that_hangs_makes_the_page_old_before_it_fails(cluster: SyncInMemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(self: Sampler) -> None:
        await asyncio.sleep(3600)

    with serve_console(cluster) as served, served.browser() as browser:
        wait_for(lambda: level(browser) == "ok")
        monkeypatch.setattr(Sampler, "_survey", hang)
        wait_for(lambda: level(browser) == "warn")
        wait_for(lambda: level(browser) == "bad")
        assert "has no result yet" in browser.get("/state").text


def test_a_part_that_cannot_be_refreshed_keeps_what_the_page_shows(cluster: SyncInMemoryCluster) -> None:
    """htmx puts an answer with the status 200 in the place of the part, and the page would be empty."""
    with serve_console(cluster) as served, served.browser() as browser:
        wrong = browser.get("/partitions/99", headers={"hx-request": "true", "hx-target": "part"})
        assert wrong.status_code == 400
        assert 'id="fresh"' in wrong.text
        assert browser.get("/transactions/99/1/replicas", headers={"hx-request": "true"}).status_code == 200


def test_a_log_server_that_was_killed_is_missing_and_not_forgotten() -> None:
    with SyncInMemoryCluster(**LIFE) as cluster, serve_console(cluster) as served, served.browser() as browser:
        wait_for(lambda: "2<small> of 2</small>" in browser.get("/").text)
        cluster.kill_server("server-1")
        wait_for(lambda: "is missing: it last answered at" in browser.get("/").text)
        page = browser.get("/").text
        assert "<dt>Servers</dt><dd>1<small> of 2</small>" in page
        assert "Healthy" not in page
        assert ">missing</span>" in browser.get("/nodes").text


def test_a_cluster_that_never_answered_has_a_page_that_says_so() -> None:
    def unreachable() -> list[str]:
        raise ClusterUnavailable(address="memory", reason="nobody is there")

    with SyncInMemoryCluster(partitions=1) as cluster, serve_console(cluster, seeds=KnownServers(unreachable)) as served:
        answer = httpx.get(f"{served.url}/", timeout=20)
        assert answer.status_code == 503
        assert "nobody is there" in answer.text
        assert "No answer yet" in answer.text
        assert httpx.get(f"{served.url}/livez", timeout=20).text == "ok\n"
