"""The reference of the API and the front page in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page

from tests.e2e.stack import Stack
from tests.page.conftest import Seen


@pytest.fixture
def seen(browser: Browser, stack: Stack) -> Iterator[Seen]:
    context = browser.new_context()
    seen = Seen(context.new_page())
    seen.page.on("console", lambda message: seen.complaints.append(message.text) if message.type != "log" else None)
    seen.page.on("pageerror", lambda error: seen.complaints.append(str(error)))
    seen.page.on("request", lambda request: seen.hosts.add(urlsplit(request.url).netloc))
    yield seen
    assert seen.complaints == []
    # Icons are in `data:` addresses.
    assert seen.hosts - {""} == {urlsplit(stack.url).netloc}
    context.close()


def test_a_request_can_be_tried_in_the_reference(seen: Seen, stack: Stack) -> None:
    page: Page = seen.page
    page.goto(f"{stack.url}/docs")
    page.click("#operations-Bunch-infer button.opblock-summary-control")
    page.click("#operations-Bunch-infer .try-out__btn")
    page.fill("#operations-Bunch-infer textarea.body-param__text", '{"model": "simulated", "input": "from the page"}')
    page.click("#operations-Bunch-infer .execute")
    page.wait_for_selector("#operations-Bunch-infer .live-responses-table .response")
    answer = seen.text("#operations-Bunch-infer .live-responses-table")
    assert "200" in answer
    assert "from the page" in answer


def test_the_front_page_leads_to_the_reference(seen: Seen, stack: Stack) -> None:
    seen.page.goto(stack.url)
    assert seen.text("h1") == "Bunch"
    seen.page.click("text=API reference")
    seen.page.wait_for_selector("#operations-OpenAI-create_embeddings")
