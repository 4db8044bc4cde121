"""Each reader is told of a failure what he may know, from the model's exception to the stored result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import pytest

from batching.policy import Reason
from batching.ports import BatchInfo
from batching.request import Failed, Request, Words
from config.settings import load_settings
from config.tiers import Tier
from tasks.protocol.disclosure import HIDDEN, Disclosure, without_secrets
from tasks.protocol.results import CeleryCodec
from tests.unit.computing import run
from workers.executor.compute import BatchComputer
from workers.models import InputRejected, InvalidInput, TransientError
from workers.models.http import HttpModel

INFO = BatchInfo("b", "m", "1", 2, Reason.FULL, claimed_ms=5_000, compute_s=0.01)
SECRET = "alice wrote this"
TO_CALLERS = Disclosure("caller")
Predict = Callable[[list[Any], list[dict[str, Any]]], Any]


class Model:
    def __init__(self, predict: Predict) -> None:
        self.predict = predict

    def load(self, device: str) -> None:
        pass


def results(model: Any, *inputs: Any, disclosure: Disclosure = TO_CALLERS) -> tuple[list[str], list[str]]:
    """The stored result of each input, sent by an owner of its own, and the dead letter, if there is one."""
    raw = [msgspec.json.encode(each) for each in inputs]
    codec = CeleryCodec(1000, disclosure)
    told, buried = [], []
    for number, outcome in enumerate(run(BatchComputer(model), *raw).outcomes):
        request = Request(f"id-{number}", Tier.PAID, number, raw[number], b"{}", owner=f"owner-{number}")
        told.append(codec.encode(request, outcome, INFO).result.decode())
        buried.append(codec.dead_letter(request, outcome, INFO).decode() if isinstance(outcome, Failed) else "")
    return told, buried


def raising(error: Callable[[str], BaseException]) -> Model:
    def predict(inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        raise error(f"cannot take {inputs}")

    return Model(predict)


@pytest.mark.parametrize("error", [TransientError, ConnectionResetError, TimeoutError])
def test_what_is_said_of_a_whole_call_is_told_to_nobody_in_it(error: Callable[[str], BaseException]) -> None:
    told, buried = results(raising(error), SECRET, "bob's", "carol's")
    assert all(HIDDEN in each for each in told)
    assert not any("alice" in each or "bob" in each or "Traceback" in each for each in told)
    assert all(SECRET in each and "Traceback" in each for each in buried), "operators read all of it"


def test_a_model_that_fails_whatever_it_gets_says_nothing_of_one_to_another() -> None:
    names = [f"caller {number:02} " for number in range(64)]
    told, buried = results(raising(ValueError), *names)
    for number, each in enumerate(told):
        assert not [name for name in names if name in each and name != names[number]], each
    assert all("cannot take" in each for each in buried)


def test_a_refusal_that_is_raised_for_a_call_is_nobodys_but_the_refused_ones() -> None:
    def predict(inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        if SECRET in inputs:
            raise InputRejected(f"refused among {inputs}")
        return inputs

    told, _ = results(Model(predict), SECRET, *range(7), disclosure=Disclosure("operator"))
    assert f"refused among ['{SECRET}']" in told[0], "found alone, and a refusal is always told"
    assert all('"SUCCESS"' in each for each in told[1:])


def test_inputs_that_are_all_refused_by_raising_are_each_told_their_own() -> None:
    def predict(inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        raise InvalidInput(f"no {inputs}")

    told, _ = results(Model(predict), *range(32))
    for number, each in enumerate(told):
        assert f'"no [{number}]"' in each
        assert '"code":"INVALID_INPUT"' in each


def test_the_one_that_is_left_after_halving_is_told_its_own() -> None:
    def predict(inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        if SECRET in inputs:
            raise KeyError(f"cannot take {inputs}")
        return inputs

    told, _ = results(Model(predict), 1, SECRET, 3, 4)
    assert f"cannot take ['{SECRET}']" in told[1]
    assert "Traceback" in told[1]


@pytest.mark.parametrize("error", [RuntimeError("secret weights"), MemoryError("secret weights")])
def test_a_models_own_words_are_for_operators_where_the_setting_says_so(error: Exception) -> None:
    model = Model(lambda inputs, _: [error, object(), 3])
    told, buried = results(model, 1, 2, 3, disclosure=Disclosure("operator"))
    assert HIDDEN in told[0]
    assert HIDDEN in told[1], "what an output's own class says is the model's as well"
    assert "secret weights" in buried[0]
    told, _ = results(model, 1, 2, 3, disclosure=Disclosure("caller"))
    assert "secret weights" in told[0]


def test_what_is_wrong_with_the_contract_is_told_whatever_the_setting() -> None:
    told, _ = results(Model(lambda inputs, _: {}), 1, 2, disclosure=Disclosure("operator"))
    assert all("returned a dict for 2 inputs" in each for each in told)


@pytest.mark.parametrize(
    ("error_detail", "auth", "owner", "is_told"),
    [
        (None, "off", "", True),
        (None, "keys", "", False),
        (None, "jwt", "a", False),
        # A worker that was not told of the frontends' setting: the request shows it.
        (None, "off", "a", False),
        ("caller", "keys", "a", True),
        ("operator", "off", "", False),
    ],
)
def test_unset_callers_are_told_where_nobody_is_asked_for_a_credential(
    error_detail: Any, auth: str, owner: str, is_told: bool
) -> None:
    disclosure = Disclosure(error_detail, auth)
    failed = Failed("the model's words", traceback="Traceback", words=Words.INPUT)
    assert disclosure.told(failed, owner) == ((failed.message, "Traceback") if is_told else (HIDDEN, None))
    assert disclosure.told(Failed("ours"), owner) == ("ours", None)
    of_a_call = Failed("of others", traceback="Traceback", words=Words.CALL, public="the API answered 503")
    assert disclosure.told(of_a_call, owner) == ("the API answered 503", None)


def test_the_setting_is_unset_by_default_and_refuses_other_words() -> None:
    assert load_settings({}).error_detail is None
    assert load_settings({"BUNCH_ERROR_DETAIL": "operator"}).error_detail == "operator"
    with pytest.raises(Exception, match=r"BUNCH_ERROR_DETAIL = 'everybody'.*caller.*operator"):
        load_settings({"BUNCH_ERROR_DETAIL": "everybody"})


def an_api(handler: Callable[[httpx.Request], httpx.Response], **headers: str) -> HttpModel:
    made = HttpModel("http://api.example/p", headers=headers, transport=httpx.MockTransport(handler))
    made.load("cpu")
    return made


@pytest.mark.parametrize("status", [400, 422, 500, 503])
def test_what_an_api_answers_is_told_to_no_caller_and_its_headers_to_nobody(status: int) -> None:
    def echo(request: httpx.Request) -> httpx.Response:
        return httpx.Response(status, text=f"{dict(request.headers)} {request.content!r}")

    told, buried = results(an_api(echo, Authorization="Bearer t0ps3cret-token"), SECRET)
    assert f"the model's API answered {status}" in told[0]
    for text in (SECRET, "t0ps3cret", "Traceback"):
        assert text not in told[0]
    assert "t0ps3cret" not in buried[0]
    assert "authorization" in buried[0], "what it said is kept for the operator"


def test_a_header_that_the_client_library_refuses_is_not_shown() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.LocalProtocolError(f"Illegal header value {request.headers['x-key']!r}")

    told, buried = results(an_api(refuse, **{"X-Key": "t0ps3cret-token"}), 1, 2)
    assert all("could not be called: LocalProtocolError" in each for each in told)
    assert not any("t0ps3cret" in each for each in told + buried)


def test_only_words_that_can_be_secrets_are_taken_out() -> None:
    assert without_secrets("Bearer abc: Bearer abcdefgh", ["Bearer abcdefgh", "abc"]) == "… abc: … …"
