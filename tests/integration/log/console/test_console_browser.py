"""The console in a real browser: every page in light and dark, at a desk and on a phone, by keyboard alone."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.integration.log.console.browser import open_browser, open_page, save_screenshot, serious_problems
from tests.integration.log.console.served_console import ServedConsole, serve_console
from waltz_log.client import Lock
from waltz_log.client.transactions.transaction import lock_hash
from waltz_log.errors import LockConflict
from waltz_log.testing import SyncInMemoryCluster

PAGES = {
    "overview": "/",
    "partitions": "/partitions",
    "partition": "/partitions/0",
    "transactions": "/transactions",
    "transaction": "/transactions/0/5",
    "conflicts": "/conflicts",
    "topics": "/topics",
    "topic": "/topics/airline/legs",
    "nodes": "/nodes",
    "actions": "/actions",
    "confirmation": "/actions/change-policy?topic=airline/legs&policy=retention_bytes&value=1000000",
    "failure": "/transactions/0/123456",
}
SIZES = [("light", False), ("dark", False), ("light", True), ("dark", True)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[SyncInMemoryCluster]:
    with SyncInMemoryCluster(partitions=6, storages=3, servers=2) as cluster:
        cluster.create_topic("airline/legs", 3)
        cluster.create_topic("shop/carts", 2, keyed=True)
        first, second = cluster.client(), cluster.client()
        legs, rival, carts = first.topic("airline/legs"), second.topic("airline/legs"), first.topic("shop/carts")
        rng = random.Random(7)
        marks = rival.high_water_marks()
        for number in range(90):
            tail = f"N{rng.randint(100, 109)}"
            leg = {"tail": tail, "leg": number, "origin": rng.choice(["EWR", "JFK", "LGA"]), "dest": "SFO", "distance": 100 + 7 * number}
            place = rng.randrange(3)
            legs.append(json.dumps(leg).encode(), partition=place, header=1, write_locks=[Lock("aircraft", tail)])
            if number % 3 == 0:
                with pytest.raises(LockConflict):
                    rival.append(b"{}", partition=place, write_locks=[Lock("aircraft", tail)], high_water_mark=marks[place])
            if number % 9 == 0:
                carts.append(b'{"item": "<b>book</b>"}', key=b"cart-%d" % (number % 4))
        yield cluster


@pytest.fixture(scope="module")
def served(cluster: SyncInMemoryCluster) -> Iterator[ServedConsole]:
    with serve_console(cluster, allow_actions=True) as served:
        yield served


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as browser:
        yield browser


@pytest.mark.parametrize("name", PAGES)
def test_a_page_can_be_read_in_every_size_and_scheme(browser: Browser, served: ServedConsole, name: str) -> None:
    for scheme, phone in SIZES:
        failing = name == "failure"
        context = browser.new_context(base_url=served.url) if failing else None
        if context is not None:  # the browser itself reports the status 404 as a complaint
            page = context.new_page()
            page.goto(PAGES[name])
            assert serious_problems(page) == []
            assert "Not committed yet" in page.inner_text("h1")
            context.close()
            return
        with open_page(browser, served.url, scheme=scheme, phone=phone) as page:
            page.goto(PAGES[name])
            page.wait_for_load_state("networkidle")
            assert page.locator("h1").count() == 1
            assert serious_problems(page) == []
            width = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert width <= 0, f"{name} is wider than the screen by {width} pixels"
            suffix = ("-dark" if scheme == "dark" else "") + ("-phone" if phone else "")
            if (name, suffix) in {("overview", ""), ("conflicts", "-dark"), ("nodes", "")}:
                save_screenshot(page, f"{name}{suffix}")


def test_the_console_is_used_by_keyboard_alone(browser: Browser, served: ServedConsole) -> None:
    with open_page(browser, served.url) as page:
        page.goto("/")
        page.keyboard.press("Tab")
        expect(page.locator(".skip")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator("main")).to_be_focused()
        page.keyboard.press("/")
        page.wait_for_url("**/transactions#text")
        expect(page.locator("#text")).to_be_focused()
        page.keyboard.type('"leg": 42,')
        page.keyboard.press("Enter")
        page.wait_for_url("**/transactions?text=*")
        link = page.locator("#rows a.id")
        expect(link).to_have_count(1)
        for _ in range(60):
            if link.evaluate("element => element === document.activeElement"):
                break
            page.keyboard.press("Tab")
        expect(link).to_be_focused()
        page.keyboard.press("Enter")
        page.wait_for_url(re.compile(r"/transactions/\d+/\d+$"))
        assert '"leg": 42' in page.inner_text("pre.payload")


def test_a_transaction_found_by_its_payload_shows_the_lock_that_others_lost_on(
    browser: Browser, cluster: SyncInMemoryCluster, served: ServedConsole
) -> None:
    winner, loser = cluster.client(), cluster.client()
    mark = loser.high_water_mark(5)
    winner.append(5, b'{"order": "A-4711"}', write_locks=[Lock("stock", 4711)])
    with pytest.raises(LockConflict):
        loser.append(5, b"late", write_locks=[Lock("stock", 4711)], high_water_mark=mark)
    digits = lock_hash(("stock", 4711)).hex()
    with open_page(browser, served.url) as page:
        page.goto("/")
        page.get_by_role("link", name="Transactions", exact=True).click()
        page.get_by_label("Text in the payload").fill("A-4711")
        page.get_by_role("button", name="Search").click()
        page.locator("#rows a.id").click()
        conflicts = page.locator("section", has=page.get_by_role("heading", name="Conflicts"))
        for _ in range(240):  # the console surveys the servers every 0.2 s
            if digits in conflicts.inner_text():
                break
            page.wait_for_timeout(250)
            page.reload()
        expect(conflicts).to_contain_text(f"client {loser.client_id}")
        conflicts.get_by_role("link", name=digits).click()
        expect(page.locator("h1")).to_have_text("Conflicts")
        expect(page.locator("#part")).to_contain_text(f"client {loser.client_id}, sequence")


def test_the_command_that_drains_a_node_stays_unfolded_when_the_page_refreshes(browser: Browser, served: ServedConsole) -> None:
    with open_page(browser, served.url) as page:
        page.goto("/nodes")
        page.locator("#drain-storage-1 summary").click()
        command = page.get_by_label("Command for storage-1")
        expect(command).to_be_visible()
        page.locator("#part").evaluate("element => { element.dataset.old = 'yes'; }")
        page.evaluate("document.body.dispatchEvent(new CustomEvent('refresh'))")
        expect(page.locator("#part[data-old]")).to_have_count(0)
        expect(command).to_be_visible()
        expect(page.locator("#drain-storage-1 summary")).to_be_focused()
        expect(page.get_by_label("Command for storage-2")).to_be_hidden()


def test_a_live_tail_shows_what_comes_and_never_runs_it(browser: Browser, cluster: SyncInMemoryCluster, served: ServedConsole) -> None:
    client = cluster.client()
    with open_page(browser, served.url) as page:
        page.goto("/transactions?partition=5")
        page.get_by_role("button", name="Start live tail").click()
        expect(page.locator("#tail-state")).to_have_text("Waiting for transactions…")
        rows = page.locator("#rows tr", has_text="from the tail")
        for number in range(300):
            client.append(5, b'from the tail <img src=x onerror="document.title=666">%d' % number)
            page.wait_for_timeout(200)
            if rows.count():
                break
        expect(page.locator("#tail-state")).to_have_text("Live")
        assert page.title().startswith("Transactions")
        assert page.locator("#rows img").count() == 0
        page.get_by_role("button", name="Stop live tail").click()
        expect(page.get_by_role("button", name="Start live tail")).to_be_visible()


def test_the_page_refreshes_by_itself_keeps_the_focus_and_can_be_paused(
    browser: Browser, cluster: SyncInMemoryCluster, served: ServedConsole
) -> None:
    with open_page(browser, served.url) as page:
        page.goto("/partitions")
        page.locator('a[href="/partitions/4"]').focus()
        page.evaluate("document.body.dispatchEvent(new CustomEvent('refresh'))")
        page.wait_for_load_state("networkidle")
        expect(page.locator('a[href="/partitions/4"]')).to_be_focused()
        page.get_by_role("button", name="Live").click()
        expect(page.get_by_role("button", name="Paused")).to_have_attribute("aria-pressed", "false")


def test_the_theme_can_be_chosen_and_is_kept(browser: Browser, served: ServedConsole) -> None:
    with open_page(browser, served.url) as page:
        page.goto("/")
        before = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.get_by_role("button", name="Light or dark").click()
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
        page.goto("/nodes")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before


def test_an_action_is_confirmed_and_run(browser: Browser, served: ServedConsole) -> None:
    with open_page(browser, served.url) as page:
        page.goto("/topics/shop/carts")
        page.get_by_label("New value of flush_period_ms").fill("2500")
        page.locator("tr", has_text="flush_period_ms").get_by_role("button", name="Change…").click()
        expect(page.locator("main")).to_contain_text("Set flush_period_ms of the topic shop/carts to 2500?")
        page.get_by_role("button", name="Set flush_period_ms").click()
        page.wait_for_url("**/topics/shop/carts")
        expect(page.locator("tr", has_text="flush_period_ms")).to_contain_text("changed")


@contextmanager
def complaining_page(browser: Browser, url: str) -> Iterator[Page]:
    """A page whose requests may fail, which the browser reports as a complaint."""
    context = browser.new_context(base_url=url, viewport={"width": 1280, "height": 860})
    page = context.new_page()
    expect.set_options(timeout=30_000)
    try:
        yield page
    finally:
        context.close()


@pytest.mark.parametrize(("path", "paused"), [("/", False), ("/partitions", True), ("/transactions", False)], ids=["live", "paused", "no refresh"])
def test_an_open_page_shows_that_the_whole_cluster_stopped_and_how_old_its_data_is(browser: Browser, path: str, paused: bool) -> None:
    with (
        SyncInMemoryCluster(partitions=1, storages=3, servers=1) as cluster,
        serve_console(cluster) as served,
        complaining_page(browser, served.url) as page,
    ):
        page.goto(path)
        expect(page.locator("#fresh .dot.ok")).to_be_visible()
        if paused:
            page.get_by_role("button", name="Live").click()
        expect(page.locator("#state .notice")).to_have_count(0)
        cluster.kill_server("server-0")
        for number in range(3):
            cluster.kill_storage(f"storage-{number}")
        expect(page.locator("#fresh .dot.bad")).to_be_visible()
        expect(page.locator("#fresh")).to_contain_text(re.compile(r"No data for \d+"))
        expect(page.locator("#state .notice")).to_contain_text(re.compile(r"The cluster does not answer. What you see is \d.* old"))
        expect(page.locator("main.stale")).to_have_count(1)
        assert serious_problems(page) == []


def test_an_open_page_shows_that_the_console_itself_stopped(browser: Browser, cluster: SyncInMemoryCluster) -> None:
    with serve_console(cluster) as served, complaining_page(browser, served.url) as page:
        page.goto("/nodes")
        expect(page.locator("#fresh .dot.ok")).to_be_visible()
        page.context.set_offline(True)
        expect(page.locator("#fresh .dot.bad")).to_be_visible()
        expect(page.locator("#state")).to_contain_text(re.compile(r"The console does not answer. What you see is \d+ s old."))
        expect(page.locator("#storages")).to_be_visible()
        page.context.set_offline(False)
        expect(page.locator("#fresh .dot.ok")).to_be_visible()
        expect(page.locator("#state .notice")).to_have_count(0)
        expect(page.locator("main.stale")).to_have_count(0)


def test_a_paused_page_shows_how_old_it_is(browser: Browser, served: ServedConsole) -> None:
    with open_page(browser, served.url) as page:
        page.goto("/partitions")
        page.get_by_role("button", name="Live").click()
        expect(page.locator("#fresh")).to_contain_text(re.compile(r", \d+ s old"))
        expect(page.locator("#fresh .dot.warn")).to_be_visible()

        page.get_by_role("button", name="Paused").click()
        expect(page.locator("#fresh .dot.ok")).to_be_visible()


def test_a_page_that_is_visible_again_shows_its_age_before_any_answer(browser: Browser, served: ServedConsole) -> None:
    with open_page(browser, served.url) as page:
        page.clock.install()
        page.goto("/partitions")
        page.route("**/*", lambda route: None)  # nothing answers from now on
        page.clock.fast_forward(7_200_000)
        expect(page.locator("#fresh")).to_contain_text("2 h old", timeout=2000)


def test_a_paused_page_is_as_old_after_an_outage_as_it_was(browser: Browser, cluster: SyncInMemoryCluster) -> None:
    with serve_console(cluster) as served, complaining_page(browser, served.url) as page:
        page.goto("/partitions")
        page.get_by_role("button", name="Live").click()
        as_of = re.search(r"As of [\d:.]+ UTC", page.inner_text("#fresh"))
        assert as_of is not None
        page.context.set_offline(True)
        expect(page.locator("#fresh .dot.bad")).to_be_visible()
        page.context.set_offline(False)
        expect(page.locator("#state .notice")).to_have_count(0)
        expect(page.locator("#fresh .dot.warn")).to_be_visible()
        expect(page.locator("#fresh")).to_contain_text(as_of[0])
