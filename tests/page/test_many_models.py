"""The page with nine models and with fifty, on a desk and on a phone; with Redis hung; with a tier sent away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.page.conftest import Seen, opened
from tests.page.fleet import ShownFleet
from tests.page.test_page import picture, serious


@pytest.fixture(scope="module")
def nine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShownFleet]:
    yield from _running(ShownFleet(tmp_path_factory.mktemp("nine"), 9, 2))


@pytest.fixture(scope="module")
def fifty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShownFleet]:
    yield from _running(ShownFleet(tmp_path_factory.mktemp("fifty"), 50, 8))


def _running(fleet: ShownFleet) -> Iterator[ShownFleet]:
    fleet.start()
    try:
        yield fleet
    finally:
        fleet.stop()


def rows(seen: Seen, table: str) -> list[str]:
    return [each.text_content() or "" for each in seen.page.query_selector_all(f"#{table} tbody tr > :first-child")]


def settled(seen: Seen, models: int) -> None:
    seen.wait_for(f"document.querySelectorAll('#models-table tbody tr').length === {models}")


def reachable(seen: Seen, selector: str) -> bool:
    """True if its right edge is inside the window without anything being pushed sideways."""
    edges = f"[...document.querySelectorAll({selector!r})].map((each) => each.getBoundingClientRect().right)"
    return bool(seen.page.evaluate(f"Math.max(...{edges}) <= innerWidth"))


@pytest.mark.parametrize("size", ["desktop", "phone"])
def test_of_nine_models_those_that_do_nothing_are_folded(
    browser: Browser, nine: ShownFleet, tmp_path: Path, size: str
) -> None:
    with opened(browser, nine.url, size) as seen:
        settled(seen, 2)
        assert rows(seen, "models-table") == nine.active
        assert seen.text("#fold") == "Show 7 idle"
        assert "2 of 9 models shown" in seen.text("#scope-says")
        assert {each.rpartition(".")[0] for each in rows(seen, "queues-table")} == set(nine.active)
        assert serious(seen.page) == []
        assert seen.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        picture(seen.page, f"ops-nine-{size}-light", tmp_path, history_s=10)
        # Nothing that one came for is off to the right.
        assert reachable(seen, "#workers-table button[data-action=drain]")
        assert reachable(seen, "#models-table button[data-action=pause]")
        folded = seen.page.evaluate("document.documentElement.scrollHeight")
        seen.page.focus("#fold")
        seen.page.keyboard.press("Enter")
        settled(seen, 9)
        assert seen.page.evaluate("document.documentElement.scrollHeight") > folded
        assert seen.text("#fold") == "Hide 7 idle"
        assert serious(seen.page) == []
        assert seen.complaints == []


@pytest.mark.parametrize(("size", "scheme"), [("desktop", "dark"), ("phone", "light")])
def test_of_fifty_models_one_is_found_by_a_part_of_its_name(
    browser: Browser, fifty: ShownFleet, tmp_path: Path, size: str, scheme: str
) -> None:
    with opened(browser, fifty.url, size, scheme) as seen:
        settled(seen, 8)
        assert seen.text("#batches-models").count("mean") <= 6
        # Each worker's executors of idle models are one line.
        assert "and 42 more" in seen.text("#workers-table")
        assert serious(seen.page) == []
        picture(seen.page, f"ops-fifty-{size}-{scheme}", tmp_path, history_s=10)
        # An idle one, by name, without unfolding the others.
        seen.page.fill("#filter", "-33")
        settled(seen, 1)
        assert rows(seen, "models-table") == ["embed-33"]
        assert "1 of 50 models shown" in seen.text("#scope-says")
        seen.page.fill("#filter", "nothing of the kind")
        settled(seen, 1)
        assert "no model name contains this" in seen.text("#scope-says")
        assert serious(seen.page) == []
        assert seen.complaints == []


@pytest.mark.parametrize("size", ["desktop", "phone"])
def test_the_links_to_its_sections_stay(browser: Browser, fifty: ShownFleet, size: str) -> None:
    with opened(browser, fifty.url, size) as seen:
        settled(seen, 8)
        link = seen.page.locator("nav.jump a[href='#dead']")
        for section in ("workers", "dead"):
            seen.page.locator(f"nav.jump a[href='#{section}']").click()
            seen.page.wait_for_timeout(800)
            top = seen.page.evaluate(f"document.querySelector('#{section}').getBoundingClientRect().top")
            assert 0 <= top < seen.page.evaluate("innerHeight")
            assert link.is_visible()
            # Not behind the header, which stays above it.
            assert top >= seen.page.evaluate("document.querySelector('header').getBoundingClientRect().bottom") - 1


def test_a_filter_names_whose_requests_are_drawn(browser: Browser, fifty: ShownFleet) -> None:
    with opened(browser, fifty.url) as seen:
        settled(seen, 8)
        seen.wait_for("document.querySelector('#requests-chart .legend').textContent.match(/OK [1-9]/)")

        def served() -> float:
            text = seen.text("#requests-chart .legend .key b")
            return float(text.replace(",", "").replace("–", "0"))

        all_of_them = served()
        seen.page.fill("#filter", fifty.active[0])
        settled(seen, 1)
        assert 0 < served() < all_of_them / 2


def test_while_redis_hangs_nothing_looks_like_now(browser: Browser, nine: ShownFleet, tmp_path: Path) -> None:
    with opened(browser, nine.url) as seen:
        settled(seen, 2)
        seen.wait_for("document.querySelector('#status').dataset.level !== 'stale'")
        with nine.hung():
            seen.wait_for("document.querySelector('#main').classList.contains('stale')")
            assert seen.page.evaluate("document.querySelector('#status').dataset.level") in {"stale", "unhealthy"}
            assert seen.text("#status-text") == "no current data"
            assert "The page shows the state of" in seen.text("#findings")
            assert "Nothing needs attention" not in seen.text("#findings")
            # The first missed event is noticed by the page itself, long before Redis' time-out.
            ago = int(seen.text("#freshness").removeprefix("last update ").removesuffix(" s ago"))
            assert ago <= 6
            assert serious(seen.page) == []
            picture(seen.page, "ops-redis-hangs-desktop-light", tmp_path)
        seen.wait_for("!document.querySelector('#main').classList.contains('stale')")
        seen.wait_for("document.querySelector('#freshness').textContent === 'live'")


@pytest.mark.parametrize(("size", "scheme"), [("desktop", "light"), ("phone", "dark")])
def test_a_tier_that_is_sent_away_is_now_and_not_soon(
    browser: Browser, nine: ShownFleet, tmp_path: Path, size: str, scheme: str
) -> None:
    nine.refused, nine.busy = 0.6, 0.99
    try:
        with opened(browser, nine.url, size, scheme) as seen:
            now = "#findings li[data-level=bad]"
            seen.wait_for(
                f"[...document.querySelectorAll('{now}')].some((each) => each.textContent.includes('refused'))"
            )
            finding = seen.page.locator("#findings li", has_text="were refused at admission")
            assert finding.get_attribute("data-level") == "bad"
            assert (finding.text_content() or "").startswith("Now: free: ")
            assert seen.page.get_attribute('[data-tile="Not served"]', "data-level") == "bad"
            assert serious(seen.page) == []
            picture(seen.page, f"ops-tier-refused-{size}-{scheme}", tmp_path, history_s=10)
    finally:
        nine.refused, nine.busy = 0.0, 0.3


def test_a_colour_has_a_sentence_and_an_error_is_its_last_line(browser: Browser, nine: ShownFleet) -> None:
    nine.busy, nine.failing = 0.97, nine.models[5]
    try:
        with opened(browser, nine.url) as seen:
            seen.wait_for("document.querySelector('#findings').textContent.includes('does not start')")
            said = seen.text("#findings")
            assert f"{nine.failing}/0 on worker2@a-rather-long-hostname does not start: KeyError: 'weights'" in said
            assert "~~~" not in said
            # A model with a failing executor is not idle.
            assert nine.failing in rows(seen, "models-table")
            # Busy with small batches is no finding, and then no colour either.
            coloured = seen.page.evaluate(
                "[...document.querySelectorAll('#tiles [data-level]')].filter((each) => each.dataset.level).length"
            )
            assert seen.page.get_attribute('[data-tile="Executors busy"]', "data-level") == "warn"
            findings = seen.page.locator("#findings li").count()
            assert 0 < coloured <= findings
            assert "worker2@a-rather-long-hostname" in seen.text("#workers-table")
    finally:
        nine.busy, nine.failing = 0.3, ""
