"""A real browser for the console's pages: Debian's Chromium, driven by Playwright, and axe for what people cannot read or reach.

`requests`: every address that the pages asked for; `complaints`: what the browser said of them, such as a violated policy.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

__all__ = ["CHROMIUM", "SCREENSHOTS", "open_browser", "open_page", "save_screenshot", "serious_problems"]

CHROMIUM = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)

SCREENSHOTS = os.environ.get("WALTZ_SCREENSHOTS")
"""A folder to write the pictures of the documentation to: `make screenshots`."""


@contextmanager
def open_browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium here: the pages were tested over HTTP alone (Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def open_page(browser: Browser, url: str, *, scheme: str = "light", phone: bool = False) -> Iterator[Page]:
    """A page of a new profile. Fails if the page asked another host for anything, or the browser complained."""
    size = {"width": 390, "height": 844} if phone else {"width": 1280, "height": 860}
    context = browser.new_context(base_url=url, viewport=size, color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
    page = context.new_page()
    page.set_default_timeout(30_000)
    expect.set_options(timeout=30_000)  # five seconds otherwise, which are few on a busy machine
    foreign: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: foreign.append(request.url) if not request.url.startswith((url, "blob:", "data:")) else None)
    page.on("console", lambda message: complaints.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    try:
        yield page
    finally:
        context.close()
    assert foreign == []
    assert complaints == []


def serious_problems(page: Page) -> list[str]:
    """What axe finds that keeps people from using the page."""
    found = Axe().run(page).response["violations"]
    return [
        f"{page.url}: {each['id']}: {node['html'][:160]}" for each in found if each["impact"] in ("serious", "critical") for node in each["nodes"]
    ]


def save_screenshot(page: Page, name: str) -> None:
    """For the documentation, only if pictures are asked for."""
    if SCREENSHOTS:
        page.screenshot(path=Path(SCREENSHOTS) / f"{name}.png", scale="css")
