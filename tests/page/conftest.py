"""A stack of its own, and a headless Chromium that records the errors of its console."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

from tests.e2e.client import Api, connected
from tests.e2e.stack import Stack
from tests.tools import chromium
from tests.waiting import wait_until

MODELS = """\
default_model = "simulated"

[models.simulated]
source = "workers.models.simulated:Simulated"
options = { batch_ms = 60, item_ms = 0.1 }
max_batch_size = 16
max_queue_depth = 300

[models.moody]
source = "tests.models:Moody"

# Four requests are one batch, however far apart they arrive.
[models.quartet]
source = "tests.models:Moody"
policy = "fixed"
max_batch_size = 4
max_wait_ms = 3900
"""
SIZES = {"desktop": (1440, 1000), "phone": (390, 844)}


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    each = Stack(tmp_path_factory.mktemp("page"), MODELS)
    try:
        yield each.start("--web-workers=2", "--workers=2", "--no-flower", log_format="json", queue_timeout_ms=4000)
        each.stop()
    finally:
        each.kill()


@pytest.fixture(scope="session")
def api(stack: Stack) -> Iterator[Api]:
    with connected(stack.port) as api:
        yield api


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Closed after each module: its event loop counts as running meanwhile, and other tests have loops of their own."""
    path = chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@dataclass
class Seen:
    """An open page, the errors of its console, and its requests."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)

    def wait_for(self, script: str) -> None:
        """Wait until the expression is true. Not `wait_for_function`: that evaluates in the page, whose policy forbids
        it.
        """
        wait_until(lambda: self.page.evaluate(script), what=script, patience_s=30.0)

    def text(self, selector: str) -> str:
        return (self.page.text_content(selector) or "").strip()


@contextmanager
def opened(browser: Browser, url: str, size: str = "desktop", scheme: Any = "light") -> Iterator[Seen]:
    """The page, once it shows its first figures."""
    width, height = SIZES[size]
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme=scheme,
        device_scale_factor=2 if size == "phone" else 1,
        has_touch=size == "phone",
    )
    page = context.new_page()
    seen = Seen(page)

    def complain(message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            seen.complaints.append(message.text)

    page.on("console", complain)
    page.on("pageerror", lambda error: seen.complaints.append(str(error)))
    page.on("request", lambda request: seen.hosts.add(request.url.split("/")[2]))
    page.goto(f"{url}/ops")
    seen.wait_for("document.querySelectorAll('#tiers-table tbody tr').length === 3")
    try:
        yield seen
    finally:
        context.close()


@pytest.fixture
def look(browser: Browser, stack: Stack) -> Callable[..., Any]:
    return partial(opened, browser, stack.url)
