"""Changes from the page: said first, done when told, by keyboard alone; and one request explained."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.fleet.desired_state import Desired, DesiredState
from tasks.fleet.registry_reader import Fleet
from tests.e2e.client import Api
from tests.e2e.stack import Stack
from tests.page.conftest import Seen
from tests.page.test_page import picture, serious
from tests.waiting import wait_until


@pytest.fixture(autouse=True)
def _put_right(stack: Stack, api: Api) -> Iterator[None]:
    yield
    for arguments in (
        {"model": "moody"},
        *({"worker": row.node} for row in Fleet(stack.redis()).workers() if row.node),
    ):
        answer = api.post("/ops/actions/resume", {"arguments": arguments, "confirm": True})
        assert answer.status == 200, answer.body


def desired(stack: Stack) -> Desired:
    return DesiredState(stack.redis()).read(["moody"])["moody"]


def press(seen: Seen, selector: str) -> None:
    seen.wait_for(f"document.querySelector({selector!r})")
    seen.page.focus(selector)
    seen.page.keyboard.press("Enter")


def confirmed(seen: Seen, *words: str) -> None:
    """The dialog says what will happen, does nothing on a second Enter, and does it at its button."""
    seen.page.wait_for_selector("#confirm[open]")
    for each in words:
        assert each in seen.text("#confirm-will")
    # Whoever presses Enter twice has not read it.
    assert seen.page.evaluate("document.activeElement.value === 'cancel'")
    assert serious(seen.page) == []
    seen.page.keyboard.press("Shift+Tab")
    assert seen.page.evaluate("document.activeElement.id === 'confirm-go'")
    seen.page.keyboard.press("Enter")
    seen.wait_for("!document.querySelector('#confirm').open && document.querySelector('#said').textContent")


def button(action: str, **arguments: str) -> str:
    inside = "".join(f'[data-arguments*="\\"{key}\\":\\"{value}\\""]' for key, value in arguments.items())
    return f'button[data-action="{action}"]{inside}'


def test_a_queue_is_paused_and_resumed(look: Callable[..., Any], stack: Stack, tmp_path: Path) -> None:
    with look() as seen:
        pause, resume = (button(each, model="moody", tier="free") for each in ("pause", "resume"))
        press(seen, pause)
        seen.page.wait_for_selector("#confirm[open]")
        picture(seen.page, "ops-pause-desktop-light", tmp_path, whole=False)
        seen.page.keyboard.press("Enter")
        seen.wait_for("!document.querySelector('#confirm').open")
        assert desired(stack) == Desired()

        press(seen, pause)
        confirmed(seen, "2 workers (", "moody.free", "until it is resumed", "Nothing waits now")
        assert "2 workers of 2 applied it" in seen.text("#said")
        assert {tier.value for tier in desired(stack).paused} == {"free"}
        seen.wait_for("document.querySelector('#findings').textContent.includes('moody is paused for free')")
        # The button has become its opposite, and the focus is still there.
        seen.wait_for("document.activeElement.textContent === 'Resume…'")
        assert serious(seen.page) == []
        seen.page.keyboard.press("Enter")
        confirmed(seen, "will claim moody.free again")
        assert desired(stack).paused == frozenset()
        seen.wait_for(f"document.querySelector({pause!r}) && !document.querySelector({resume!r})")
        assert seen.complaints == []


def test_a_worker_is_drained_and_resumed_on_a_phone(look: Callable[..., Any], stack: Stack, tmp_path: Path) -> None:
    fleet = Fleet(stack.redis())
    node = fleet.workers()[0].node

    def state() -> str:
        return next(row.state for row in fleet.workers() if row.node == node)

    with look("phone", "dark") as seen:
        press(seen, button("drain", worker=node))
        seen.page.wait_for_selector("#confirm[open]")
        picture(seen.page, "ops-drain-phone-dark", tmp_path, whole=False)
        confirmed(seen, node, "1 other worker serves simulated", "1 other worker serves moody")
        wait_until(lambda: state() == "drained", what="it is drained")
        seen.wait_for(
            "document.querySelector('#findings').textContent.includes('is drained: no more batches are claimed there')"
        )
        press(seen, button("resume", worker=node))
        confirmed(seen, f"{node} will claim again")
        wait_until(lambda: state() == "running", what="it claims again")
        assert seen.complaints == []


def test_a_model_is_tuned_and_goes_back(look: Callable[..., Any], stack: Stack, tmp_path: Path) -> None:
    with look() as seen:
        page = seen.page
        press(seen, button("tune", model="moody"))
        page.wait_for_selector("#tune[open]")
        assert serious(page) == []
        page.fill("#tune-size", "9")
        page.fill("#tune-more", "psychic=1")
        page.keyboard.press("Enter")
        seen.wait_for("document.querySelector('#tune-wrong').textContent.includes('psychic')")
        picture(page, "ops-tune-desktop-light", tmp_path, whole=False)
        page.fill("#tune-more", "")
        page.keyboard.press("Enter")
        confirmed(seen, "max_batch_size 64 → 9", "2 workers (")
        assert desired(stack).tuned == {"max_batch_size": 9}
        seen.wait_for("document.querySelector('#models-table').textContent.includes('max_batch_size')")
        press(seen, button("tune", model="moody"))
        page.wait_for_selector("#tune[open]")
        press(seen, "#tune-back")
        confirmed(seen, "max_batch_size 9 → 64")
        assert desired(stack).tuned == {}
        # Refused by the server: the browser's console says so, as it should.
        assert [each for each in seen.complaints if "400" not in each] == []


@pytest.mark.parametrize(("size", "scheme"), [("desktop", "light"), ("phone", "dark")])
def test_a_slow_request_is_explained(
    look: Callable[..., Any], api: Api, tmp_path: Path, size: str, scheme: str
) -> None:
    # Together they take longer than their objective. A load would not do: admission keeps its callers' waits short.
    answers = api.all([{"sleep": 0.3}] * 4, "quartet")
    row = f"#slow-table tr:has(svg.parts) [data-explain='{answers[0].json['task_id']}']"
    with look(size, scheme) as seen:
        page = seen.page
        press(seen, row)
        page.wait_for_selector("#explain[open]")
        told = seen.text("#explain-body")
        for word in ("Admission", "Queue", "Compute", "Total", "Released by", "Executor", "3 other requests"):
            assert word in told
        assert serious(page) == []
        picture(page, f"ops-explain-{size}-{scheme}", tmp_path, whole=False)
        page.keyboard.press("Enter")
        seen.wait_for("!document.querySelector('#explain').open")
        page.fill("#explain-input", "never-seen")
        page.keyboard.press("Enter")
        seen.wait_for("document.querySelector('#said').textContent.includes('nothing is known of never-seen')")
        assert [each for each in seen.complaints if "404" not in each] == []
