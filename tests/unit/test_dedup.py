"""By what a request is known again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import json

from config.keys import Shard
from config.settings import ModelSettings, Settings
from config.tiers import Tier
from tasks.client.admission_codes import refusals
from tasks.client.dedup import DedupIdentity, Deduplicator, Repeated, call_hash, canonical, read_mark
from tasks.client.submission import NO_PARAMETERS, Submission
from tasks.errors import IdempotencyConflict
from tasks.protocol.caller import Caller
from tasks.protocol.outgoing import Outgoing

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


def recogniser(**about: object) -> Deduplicator:
    model = ModelSettings(**{"name": "m", "source": "a:B", "cache": False, **about})  # type: ignore[arg-type]
    return Deduplicator(Settings(models={"m": model}, default_model="m"), Shard())


RECOGNISER = recogniser()


def asking(model: str = "m", input: bytes = b"1", owner: str = "", **options: Any) -> Submission:
    return Submission(model, Caller("", owner, Tier.PAID), input, 1.0, **options)


def once(
    model: str = "m", value: bytes = b"1", parameters: bytes = NO_PARAMETERS, owner: str = "ann", key: str = "k"
) -> DedupIdentity:
    made = RECOGNISER.of(asking(model, value, owner, parameters=parameters, idempotency_key=key))
    assert made is not None
    return made


def turned(value: object) -> object:
    """Equal, with every object's names in the other order."""
    if isinstance(value, dict):
        return {name: turned(value[name]) for name in reversed(value)}
    return [turned(each) for each in value] if isinstance(value, list) else value


@given(values)
def test_equal_values_have_one_spelling(value: object) -> None:
    spelt = canonical(json.encode(value))
    assert canonical(json.encode(turned(value))) == spelt
    assert json.decode(spelt) == value


@given(values, values)
def test_different_values_have_different_ones(one: object, other: object) -> None:
    # `1 == True`, and `1 == 1.0`, in Python alone.
    same = json.encode(one, order="sorted") == json.encode(other, order="sorted")
    assert (canonical(json.encode(one)) == canonical(json.encode(other))) == same


def test_a_request_without_a_key_stands_for_itself() -> None:
    assert RECOGNISER.of(asking(owner="ann")) is None


@pytest.mark.parametrize("change", [{"model": "n"}, {"value": b"2"}, {"parameters": b'{"a":1}'}])
def test_the_fingerprint_is_of_all_that_is_asked(change: dict[str, object]) -> None:
    assert once(**change).claim == once().claim
    assert once(**change).fingerprint != once().fingerprint


def test_the_name_is_the_owners_and_safe_whatever_the_key() -> None:
    assert len({once(owner="ann").claim, once(owner="bob").claim, once(key="l").claim}) == 3
    # Not by where one ends and the other begins.
    assert once(owner="ann", key="abc").claim != once(owner="anna", key="bc").claim
    assert once(key='"; DROP\x1b').claim.isascii()
    assert once(owner="bob").fingerprint == once().fingerprint


def test_a_question_is_of_all_that_can_make_its_answer_another() -> None:
    def question(input: bytes = b"1", parameters: bytes = NO_PARAMETERS, owner: str = "", **about: object) -> str:
        made = recogniser(**{"collapse": True, **about}).of(asking("m", input, owner, parameters=parameters))
        assert made is not None
        return made.question

    others = [
        question(b"2"), question(parameters=b'{"a":1}'), question(owner="ann"), question(version="2"),
        question(source="a:C"), question(options={"k": 1}),
    ]  # fmt: skip
    assert len({question(), *others}) == 1 + len(others)
    # What does not change an answer does not change its question.
    assert question(max_batch_size=8, cache=True) == question()


def test_who_shares_keeps_nothing_and_who_keeps_shares() -> None:
    shares = recogniser(collapse=True).of(asking())
    keeps = recogniser(cache=True).of(asking())
    assert shares is not None
    assert keeps is not None
    assert (shares.question, shares.keep_ms) == (keeps.question, 0)
    assert keeps.keep_ms == 300_000
    assert recogniser(cache=True).of(asking(fresh=True)) is None
    without = Settings(models={"m": ModelSettings(name="m", source="a:B", cache=True)}, cache_ttl_ms=0)
    nothing = Deduplicator(without, Shard()).of(asking())
    assert nothing is not None
    assert (bool(nothing.question), nothing.keep_ms) == (True, 0)
    assert read_mark(keeps.mark) == (keeps.question, 300_000)


def test_answers_are_kept_unless_their_model_says_otherwise() -> None:
    models = {
        "says nothing": ModelSettings(name="says nothing", source="a:B"),
        "draws lots": ModelSettings(name="draws lots", source="a:B", cache=False),
    }
    of = Deduplicator(Settings(models=models), Shard()).of
    kept = of(asking("says nothing"))
    assert kept is not None
    assert kept.keep_ms == 300_000
    assert of(asking("draws lots")) is None


def test_a_call_of_many_is_another_with_one_more() -> None:
    assert call_hash([b"1", b"2"]) == call_hash([b"1", b"2"])
    assert len({call_hash([b"1", b"2"]), call_hash([b"12"]), call_hash([b"1", b"2", b"3"])}) == 3


def test_what_the_script_says_of_them() -> None:
    out = [Outgoing("id", asking(), "bunch.m.paid", 1, 1, 1) for _ in range(3)]
    queued, conflict, repeated = refusals(b"078\n0;0;0,an-id;5;0", out)
    assert queued is None
    assert isinstance(conflict, IdempotencyConflict)
    assert repeated == Repeated("an-id")


def test_a_request_by_a_plain_name_is_the_same_whichever_version_it_leads_to_but_its_question_is_not() -> None:
    models = {name: ModelSettings(name=name, source="a:B", version=name[-1]) for name in ("m", "m@2")}
    recogniser = Deduplicator(Settings(models=models, default_model="m"), Shard())
    plain, moved, exact = (
        recogniser.of(asking(model, idempotency_key="k", asked=asked))
        for model, asked in (("m", ""), ("m@2", "m"), ("m@2", ""))
    )
    assert plain is not None and moved is not None and exact is not None  # noqa: PT018 - for the type
    assert (plain.claim, plain.fingerprint) == (moved.claim, moved.fingerprint)
    assert exact.fingerprint != plain.fingerprint
    assert plain.question != moved.question == exact.question
