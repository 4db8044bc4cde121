"""Celery's canvas on a batched task, sent by a plain client, with callbacks on a plain worker."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from celery import chain, chord, group
from celery.exceptions import ChordError

from tests.integration.celery_harness import PATIENCE_S
from tests.integration.celery_rig import Rig, running
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with running(tmp_path_factory.mktemp("celery")) as rig:
        yield rig


@pytest.fixture
def name() -> str:
    return uuid.uuid4().hex


def test_link_is_called_once_with_the_output(rig: Rig, name: str) -> None:
    assert rig.infer("a").apply_async(link=rig.task("note", name)).get(timeout=PATIENCE_S) == "a"
    wait_until(lambda: rig.noted(name), "the callback")
    rig.settle()
    assert rig.noted(name) == [["a"]]


def test_several_links_and_a_group_among_them(rig: Rig, name: str) -> None:
    rig.infer("a").apply_async(
        link=[rig.task("note", f"{name}1"), group(rig.task("note", f"{name}2"), rig.task("note", f"{name}3"))]
    )
    wait_until(lambda: all(rig.noted(f"{name}{n}") for n in (1, 2, 3)), "all callbacks")
    rig.settle()
    assert [rig.noted(f"{name}{n}") for n in (1, 2, 3)] == [[["a"]]] * 3


@pytest.mark.parametrize("input", [{"raise": "unwell"}, {"reject": "no"}], ids=str)
def test_link_error_is_called_once_with_the_id(rig: Rig, name: str, input: Any) -> None:
    result = rig.infer(input).apply_async(link=rig.task("note", f"{name}ok"), link_error=rig.task("failed", name))
    wait_until(lambda: rig.noted(name), "the errback")
    assert result.state == "FAILURE"
    rig.settle()
    assert (rig.noted(name), rig.noted(f"{name}ok")) == ([[result.id]], [])


def test_link_error_is_not_called_after_an_output(rig: Rig, name: str) -> None:
    rig.infer("a").apply_async(link_error=rig.task("failed", name)).get(timeout=PATIENCE_S)
    rig.settle()
    assert rig.noted(name) == []


def test_a_chain_goes_on_with_the_output(rig: Rig, name: str) -> None:
    steps = chain(rig.infer(4), rig.task("double"), rig.infer(), rig.task("note", name), app=rig.client)
    assert steps.apply_async().get(timeout=PATIENCE_S) == 8
    rig.settle()
    assert rig.noted(name) == [[8]]


def test_a_failed_chain_fails_to_its_end(rig: Rig, name: str) -> None:
    last = chain(
        rig.infer({"raise": "unwell"}), rig.task("double"), rig.task("note", name), app=rig.client
    ).apply_async()
    # By its id alone: `get` would find its parent's error by itself.
    with pytest.raises(Exception, match="unwell"):
        rig.client.AsyncResult(last.id).get(timeout=PATIENCE_S)
    rig.settle()
    assert rig.noted(name) == []


def test_a_group_answers_in_order(rig: Rig) -> None:
    results = group([rig.infer(n) for n in range(20)], app=rig.client).apply_async()
    assert results.get(timeout=PATIENCE_S) == list(range(20))


def test_one_poisonous_member_fails_alone(rig: Rig) -> None:
    members = [rig.infer({"raise": "poison"} if n == 3 else n).apply_async() for n in range(8)]
    wait_until(lambda: all(each.ready() for each in members), "all end")
    assert [each.state for each in members] == ["FAILURE" if n == 3 else "SUCCESS" for n in range(8)]


def test_a_chord_calls_its_body_once(rig: Rig, name: str) -> None:
    body = chord([rig.infer(n) for n in range(5)], app=rig.client)(rig.task("total", name))
    assert body.get(timeout=PATIENCE_S) == 10
    rig.settle()
    assert rig.noted(name) == [[[0, 1, 2, 3, 4]]]


def test_a_chord_of_chains_and_a_batched_body(rig: Rig, name: str) -> None:
    header = [chain(rig.infer(1), rig.task("double")), rig.infer(5), group(rig.infer(6), rig.task("double", 3))]
    result = chord(header, app=rig.client)(rig.infer())
    assert result.get(timeout=PATIENCE_S) == [2, 5, 6, 6]


def test_a_chord_whose_member_fails_fails(rig: Rig, name: str) -> None:
    body = rig.task("total", name).on_error(rig.task("failed", f"{name}error"))
    result = chord([rig.infer(1), rig.infer({"raise": "unwell"}), rig.infer(3)], app=rig.client)(body)
    # Without its header, whose own error `get` would raise first.
    with pytest.raises(ChordError, match="unwell"):
        rig.client.AsyncResult(result.id).get(timeout=PATIENCE_S)
    # Sent before, and perhaps still running beside what settles.
    wait_until(lambda: rig.noted(f"{name}error"), "the errback")
    rig.settle()
    assert rig.noted(name) == []
    assert len(rig.noted(f"{name}error")) == 1
