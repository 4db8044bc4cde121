"""The page as a person sees it, hears it from a screen reader, and uses it with a keyboard."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from tests.e2e.client import Api
from tests.e2e.stack import PATIENCE_S, ROOT, Stack
from tests.e2e.test_operators import Scrape, settled
from tests.waiting import wait_until

# Where look-worthy pictures go; without it they are taken, and thrown away.
PICTURES = os.environ.get("PAGE_PICTURES", "")
LOOKS = [(size, scheme) for size in ("desktop", "phone") for scheme in ("light", "dark")]


@contextmanager
def load(stack: Stack, *options: str, seconds: float = 60) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "manage.py", "bench", "--url", stack.url, "--json", f"--duration={seconds}", *options],
        cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE_S)


def picture(page: Page, name: str, tmp_path: Path, history_s: float = 0, whole: bool = True) -> None:
    """`history_s`: how long the charts should have had something to show, for a picture that is kept.

    `whole`: the page from top to bottom; or what is to be seen of it, with a dialog in front.
    """
    folder = Path(PICTURES) if PICTURES else tmp_path
    if PICTURES and history_s:
        page.locator("input[name=range][value='300']").check(force=True)
        page.wait_for_timeout(1000 * history_s)
    page.screenshot(path=folder / f"{name}.png", full_page=whole)


def serious(page: Page) -> list[str]:
    """The findings of axe: rule and element."""
    found = Axe().run(page).response["violations"]
    return [
        f"{each['id']} ({each['impact']}): {node['html'][:120]}: {node['failureSummary']}"
        for each in found
        if each["impact"] in {"serious", "critical"}
        for node in each["nodes"]
    ]


@pytest.mark.parametrize(("size", "scheme"), LOOKS)
def test_under_load_it_can_be_read_by_everybody(
    look: Callable[..., Any], stack: Stack, tmp_path: Path, size: str, scheme: str
) -> None:
    with load(stack, "--rps=150", "--mix=enterprise=2,paid=5,free=3"), look(size, scheme) as seen:
        seen.wait_for("parseFloat(document.querySelector('[data-tile=\"Requests/s\"] dd').textContent) > 100")
        assert serious(seen.page) == []
        # Nothing sticks out sideways; wide tables scroll in their own frame.
        assert seen.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        picture(seen.page, f"ops-load-{size}-{scheme}", tmp_path, history_s=20)
        assert seen.complaints == []
        assert seen.hosts == {stack.url.split("/")[2]}


def test_its_figures_are_those_of_the_metrics(look: Callable[..., Any], stack: Stack, api: Api) -> None:
    api.all(range(40))
    api.all([{"reject": "no"}] * 3, "moody")
    settled(api)
    with look() as seen:
        scrape = Scrape(api)
        totals = {
            row.query_selector("th").text_content(): int(row.query_selector(".total").text_content().replace(",", ""))
            for row in seen.page.query_selector_all("#tiers-table tbody tr")
        }
        codes = {
            each.get_attribute("data-code"): int(each.query_selector("b").text_content().replace(",", ""))
            for each in seen.page.query_selector_all("#codes [data-code]")
        }
        depths = {
            row.query_selector("th").text_content(): int(row.query_selector(".depth").text_content())
            for row in seen.page.query_selector_all("#queues-table tbody tr")
        }
        expected_codes: Counter[str] = Counter()
        expected_tiers: Counter[str] = Counter()
        for (code, _, _, tier), value in scrape.values("bunch_requests_total").items():
            expected_codes[code] += int(value)
            expected_tiers[tier] += int(value)
        assert codes == dict(expected_codes)
        assert totals == {"enterprise": 0, "paid": 0, "free": 0} | dict(expected_tiers)
        assert depths == {
            f"{model}.{tier}": value for (model, tier), value in scrape.values("bunch_queue_depth").items()
        }
        healthy = scrape.total("bunch_workers", state="healthy")
        assert seen.text('[data-tile="Workers"] dd').startswith(f"{healthy:g} ")
        assert seen.text('[data-tile="Dead letters"] dd') == f"{scrape.total('bunch_dead_letters'):g}"
        assert seen.complaints == []


def test_a_dying_worker_is_seen(look: Callable[..., Any], stack: Stack, tmp_path: Path) -> None:
    with load(stack, "--rps=150", "--mix=enterprise=2,paid=5,free=3"), look() as seen:
        seen.wait_for("parseFloat(document.querySelector('[data-tile=\"Requests/s\"] dd').textContent) > 50")
        # Not killed: `up` would bury it at once. Stopped, it is a machine that went away.
        victim = stack.pids("worker")[0]
        os.kill(victim, signal.SIGSTOP)
        try:
            seen.wait_for("document.querySelector('#findings').textContent.includes('1 of the 2 workers')")
            seen.wait_for("document.querySelector('[data-tile=Workers] dd').textContent.startsWith('1 ')")
            assert serious(seen.page) == []
            picture(seen.page, "ops-worker-dies-desktop-light", tmp_path, history_s=5)
        finally:
            os.kill(victim, signal.SIGCONT)
        seen.wait_for("document.querySelector('[data-tile=Workers] dd').textContent.startsWith('2 ')")
        seen.wait_for("!document.querySelector('#findings').textContent.includes('workers of five minutes ago')")
        assert seen.complaints == []


@pytest.mark.parametrize(("size", "scheme"), [("desktop", "dark"), ("phone", "light")])
def test_overload_is_seen(look: Callable[..., Any], stack: Stack, tmp_path: Path, size: str, scheme: str) -> None:
    with load(stack, "--rps=1200", "--mix=enterprise=1,paid=4,free=5"), look(size, scheme) as seen:
        seen.wait_for("document.querySelector('#codes [data-code=SERVICE_OVERLOADED]')")
        seen.wait_for("document.querySelectorAll('#findings li[data-level=bad]').length > 0")
        time.sleep(6)
        assert serious(seen.page) == []
        picture(seen.page, f"ops-overload-{size}-{scheme}", tmp_path, history_s=20)
        assert seen.complaints == []
    wait_until(stack.all_run, what="all is well again")


def test_dead_letters_are_replayed_with_the_keyboard_after_it_was_said_what_will_happen(
    look: Callable[..., Any], api: Api, tmp_path: Path
) -> None:
    assert {each.status for each in api.all([{"fail": "not today"}] * 3, "moody")} == {500}
    with look() as seen:
        page = seen.page
        seen.wait_for("document.querySelectorAll('#dead-table tbody input').length >= 3")
        page.focus("#dead-table tbody input")
        page.keyboard.press("Space")
        # A tick and the focus stay while rows are brought up to date.
        page.wait_for_timeout(4500)
        assert page.evaluate("document.activeElement.checked === true")
        page.focus("#dead button[data-action=drop]")
        page.keyboard.press("Enter")
        page.wait_for_selector("#confirm[open]")
        assert "1 dead letter will be deleted" in seen.text("#confirm-will")
        assert serious(page) == []
        page.keyboard.press("Escape")
        before = page.locator("#dead-table tbody input").count()
        page.focus("#dead button[data-action=replay][data-ids=selected]")
        page.keyboard.press("Enter")
        page.wait_for_selector("#confirm[open]")
        assert "will be queued again" in seen.text("#confirm-will")
        picture(page, "ops-confirm-desktop-light", tmp_path, whole=False)
        page.focus("#confirm-go")
        page.keyboard.press("Enter")
        seen.wait_for("document.querySelector('#said').textContent.includes('1 dead letter queued again')")
        # It fails again, and comes back as another.
        seen.wait_for(f"document.querySelectorAll('#dead-table tbody input').length >= {before}")
        assert seen.complaints == []


def test_a_chart_is_read_with_the_arrow_keys(look: Callable[..., Any]) -> None:
    with look() as seen:
        page = seen.page
        page.focus("#requests-chart .plot")
        newest = page.get_attribute("#requests-chart .plot", "aria-label")
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowLeft")
        older = page.get_attribute("#requests-chart .plot", "aria-label")
        assert newest is not None
        assert older is not None
        assert ", now:" in newest
        assert ", now:" not in older
        page.keyboard.press("Escape")
        assert ", now:" in (page.get_attribute("#requests-chart .plot", "aria-label") or "")
