"""The functions of `config/native/hot_path.c` against their twins in Python, which are the specification."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batching.claim.lease import Entry, Verdict
from batching.policy import Reason
from batching.ports import BatchInfo, UnreadableMessage
from batching.request import Ok, Request
from config.environ import ROOT
from config.errors import SettingsError
from config.native import build, hot_path, source_hash
from config.settings import load_settings
from config.tiers import Tier
from tasks.client.submission import Submission
from tasks.protocol import messages, results
from tasks.protocol.caller import Caller
from tasks.protocol.messages import read_message
from tasks.protocol.outgoing import MessageWriter, Outgoing, message_rest
from tasks.protocol.seal import Seal
from webapp.api import inference
from webapp.http import response
from webapp.http.response import Response

COMPILED = pytest.mark.skipif(hot_path is None, reason="SKIPPED: the hot path was not compiled here; make says why")

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
ID = st.from_regex(r"[0-9a-f]{8}-[0-9a-f]{4}", fullmatch=True)
MILLISECONDS = st.integers(0, 9_999_999_999_999)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
    max_leaves=8,
).map(msgspec.json.encode)
# With this input the message has the end of a body twice.
ENDS_EARLY = b'"a"],{"parameters":{}},{}],[[1'
HEADER = b'{"headers":{"bunch":"1;1795965797782;1795965797781;1795965767782;02;1;'


def caller(owner: str) -> Caller:
    return Caller("", owner, Tier.PAID)


def message(input: bytes = b'"a"', *, owner: str = "", seal: Seal | None = None, **more: Any) -> bytes:
    """A message as the queue has it: written by a frontend, completed by the submit script."""
    out = Outgoing("0b1f-2c", Submission("m", caller(owner), input, 1.0, **more), "bunch.m.paid", 1000, 1000, 5000)
    return HEADER + MessageWriter("bunch:reply:x", seal).rest(out, 1_800_000_000.0)


def read(raw: bytes, seal: Seal | None = None) -> Request | str:
    """The request, or the reason why there is none."""
    try:
        return read_message(Entry(3, 1, Verdict.RUN, raw), 60_000, seal=seal)
    except UnreadableMessage as error:
        return f"{error} {error.task_id}"


def read_in_python(raw: bytes, seal: Seal | None, monkeypatch: pytest.MonkeyPatch) -> Request | str:
    with monkeypatch.context() as patch:
        patch.setattr(messages, "_read_plain", None)
        return read(raw, seal)


def as_plain(request: Request | str) -> object:
    return request if isinstance(request, str) else msgspec.structs.asdict(request)


def outcome_of(call: Callable[..., Any], *args: Any) -> Any:
    try:
        return call(*args)
    except (UnicodeError, TypeError, ValueError) as error:
        return type(error)


@COMPILED
@given(
    st.tuples(
        st.booleans(),
        st.integers(0, 999_999_999),
        ID,
        ID,
        TEXT,
        TEXT,
        MILLISECONDS,
        TEXT,
        JSON | st.binary(),
        JSON,
        TEXT,
        TEXT,
    )
)
def test_both_write_the_same_message(args: tuple[Any, ...]) -> None:
    assert outcome_of(hot_path.message_rest, *args) == outcome_of(message_rest, *args)


@COMPILED
@given(
    st.sampled_from([b"\x00", b"\x1f", b"\x7f", b"\\", b'"', b"/", "\u2028é😀".encode(), b"\xff"]), st.integers(0, 5000)
)
def test_both_escape_the_same_whatever_the_length(odd: bytes, length: int) -> None:
    args = (True, 1, "k", "id", "", "e", 1, "", b"x" * length + odd + b"y" * (length // 3), b"{}", '"r"', "q")
    assert outcome_of(hot_path.message_rest, *args) == outcome_of(message_rest, *args)


@COMPILED
@given(JSON, st.sampled_from(["", "someone", 'a "quoted" owner', "ä"]), st.booleans(), st.booleans())
def test_both_read_the_same_request(input: bytes, owner: str, sealed: bool, traced: bool) -> None:
    seal = Seal((b"k" * 32,)) if sealed else None
    trace = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"} if traced else {}
    raw = message(input, owner=owner, seal=seal, **trace)
    with pytest.MonkeyPatch.context() as patch:
        assert as_plain(read(raw, seal)) == as_plain(read_in_python(raw, seal, patch))


@COMPILED
def test_the_plain_message_is_read_in_c() -> None:
    """Otherwise the comparison would be one of Python with itself."""
    assert hot_path.read_plain(message('"ä\\n/"'.encode())) is not None
    assert hot_path.read_plain(message(owner="me", seal=Seal((b"k" * 32,)))) is not None
    assert hot_path.read_plain(message(parameters=b'{"a":1}')) is None


@COMPILED
@given(st.integers(0, 2**32), st.booleans())
def test_both_read_the_same_of_a_damaged_message(seed: int, sealed: bool) -> None:
    """Whatever any client may push: never does C take what Python refuses, or take it for something else."""
    chance = random.Random(seed)
    seal = Seal((b"k" * 32,)) if sealed else None
    raw = bytearray(message(b'["a \\"word\\"",{"b":[1.5,null]}]', owner="me" if sealed else "", seal=seal))
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(raw))
        piece = chance.choice(
            [b"", b'"', b"\\", b"{", b"]", b",", b"0", b"\x00", b"\xc3", b" ", bytes([chance.randrange(256)])]
        )
        raw[at : at + chance.choice([0, 1, 1, 2, 30])] = piece
    with pytest.MonkeyPatch.context() as patch:
        assert as_plain(read(bytes(raw), seal)) == as_plain(read_in_python(bytes(raw), seal, patch))


@COMPILED
@pytest.mark.parametrize("input", [b"1,2", b"", b"1 2", ENDS_EARLY, b"[1", b'"\n"', b"01", b"tru"])
def test_an_input_that_is_not_one_value_is_refused_in_the_same_words(
    input: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = message(input)
    assert isinstance(read(raw), str)
    assert read(raw) == read_in_python(raw, None, monkeypatch)


@COMPILED
@pytest.mark.parametrize(
    "input", [b" 1", b"1\n", b"[" * 990 + b"]" * 990, b"[" * 200 + b"]" * 200, b'{"a":[1,{"b":"["}]}']
)
def test_unusual_inputs_are_read_alike(input: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = message(input)
    assert as_plain(read(raw)) == as_plain(read_in_python(raw, None, monkeypatch))


@pytest.mark.parametrize("sent_ms", [-1, -(10**23), 10**15, 10**400])
def test_a_time_that_no_clock_shows_is_none(sent_ms: int) -> None:
    """Anybody may push a message: it must not make its batch fail for the length of a number."""
    raw = message().replace(b'"bunch_sent":1800000000000', b'"bunch_sent":%d' % sent_ms)
    request = read(raw)
    assert isinstance(request, Request)
    assert request.sent_ms == 0
    info = BatchInfo("b", "m", "", 1, Reason.FULL, 1_800_000_000_000)
    assert results.CeleryCodec(1000).encode(request, Ok(b"1"), info).result


@COMPILED
@pytest.mark.parametrize("odd", [-1, 10**15, 10**30])
def test_numbers_out_of_range_take_the_python_way(odd: int) -> None:
    assert hot_path.result(b"SUCCESS", True, b"1", b"null", b"d", "i", odd, 0, "free", 1, "", b"") is None
    assert hot_path.answer("r", "t", "m", b"1", b"{}", 1.0, 0, odd, 1.0, 1.0, 1.0) is None
    assert hot_path.answer("r", "t", "m", b"1", b"{}", 1.0, 0, 1, 10**400, 1.0, 1.0) is None


@COMPILED
def test_a_cut_message_is_read_to_its_end_and_no_further() -> None:
    raw = message()
    assert not any(hot_path.read_plain(raw[:cut]) for cut in range(len(raw)))


@COMPILED
@given(
    st.tuples(
        st.sampled_from([b"SUCCESS", b"FAILURE"]),
        st.booleans(),
        JSON,
        st.just(b"null"),
        st.just(b"2026-01-01T00:00:00.000+00:00"),
        TEXT,
        MILLISECONDS,
        MILLISECONDS,
        st.sampled_from(["free", "paid"]),
        st.integers(1, 9),
        TEXT,
        st.sampled_from([b"", b',"a":1']),
    )
)
def test_both_write_the_same_result(args: tuple[Any, ...]) -> None:
    assert hot_path.result(*args) == results.result_json(*args)


TIMES = st.floats(0, 1e7) | st.sampled_from([0.0, 0.0005, 0.0015, 2.5, 1e15])


@COMPILED
@given(
    st.tuples(
        TEXT,
        ID,
        TEXT,
        JSON,
        st.sampled_from([b"{}", b'{"tier":"free","cached":false}']),
        TIMES,
        st.integers(0, 10**9),
        st.integers(0, 10**9),
        TIMES,
        TIMES,
        TIMES,
    )
)
def test_both_write_the_same_answer(args: tuple[Any, ...]) -> None:
    wrapped = [*args[:3], msgspec.Raw(args[3]), msgspec.Raw(args[4]), *args[5:]]
    assert hot_path.answer(*wrapped) == inference.answer_of(*wrapped)


class Sink:
    """Keeps what a response sends."""

    def __init__(self) -> None:
        self.sent = b""
        self.closes = False

    def send(self, data: bytes) -> None:
        self.sent += data

    def send_last(self, data: bytes) -> None:
        self.sent += data

    def must_close(self) -> bool:
        return self.closes


def sent(status: str, fields: list[tuple[str, str]], body: bytes, kind: str = "plain") -> tuple[object, ...]:
    sink = Sink()
    sink.closes = kind == "closing"
    made = Response(sink, http11=kind != "1.0", is_head=kind == "HEAD", keep_alive=kind != "last")
    try:
        made.start_response(status, fields)
        made.send_whole(body)
    except (ValueError, UnicodeError) as error:
        return (type(error), sink.sent)
    return sink.sent, made.keep_alive, made.complete, made.sent_bytes


NAMES = st.sampled_from(
    [
        "Content-Type",
        "Content-Length",
        "X-Request-Id",
        "Server-Timing",
        "Date",
        "Connection",
        "Transfer-Encoding",
        "x y",
    ]
)
VALUES = (
    st.sampled_from(["application/json", "text/plain", "3", "03", "5", "close", "a\r\nb: c", "\0", "é", "€", ""]) | TEXT
)


@COMPILED
@given(
    st.sampled_from(["200 OK", "204 No Content", "304 Not Modified", "200", "404 Nichts dergleichen"]),
    st.lists(st.tuples(NAMES, VALUES), max_size=4),
    st.sampled_from([b"", b"abc", b"x" * 5000]),
    st.sampled_from(["plain", "1.0", "HEAD", "last", "closing"]),
)
def test_both_send_the_same_response(status: str, fields: list[tuple[str, str]], body: bytes, kind: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(response, "_clock", type("Clock", (), {"date": lambda self: "Sun, 29 Nov 2026 15:00:00 GMT"})())
        in_c = sent(status, fields, body, kind)
        patch.setattr(response, "_response", None)
        assert in_c == sent(status, fields, body, kind)


@COMPILED
def test_the_usual_response_is_rendered_in_c() -> None:
    fields = [("Content-Type", "application/json"), ("Content-Length", "2"), ("X-Request-Id", "a")]
    sent("200 OK", fields, b"{}")
    assert hot_path.response("200 OK", fields, response._kinds, "now", b"{}") is not None


@COMPILED
def test_wrong_arguments_are_errors_not_crashes() -> None:
    calls: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
        (hot_path.message_rest, (1,)),
        (hot_path.message_rest, (True, -1, "k", "i", "", "e", 1, "", b"1", b"{}", '"r"', "q")),
        (hot_path.message_rest, (True, 1, b"k", "i", "", "e", 1, "", b"1", b"{}", '"r"', "q")),
        (hot_path.message_rest, (True, 1, "k", "\ud800", "", "e", 1, "", b"1", b"{}", '"r"', "q")),
        (hot_path.read_plain, ("text",)),
        (hot_path.result, (b"S", True, "1", b"null", b"d", "i", 0, 0, "free", 1, "", b"")),
        (hot_path.answer, ("r", "t", "m", "not bytes", b"{}", 1.0, 1, 1, 1.0, 1.0, 1.0)),
        (hot_path.result, (b"S", True, b"1", b"null", b"d", "i", 0.5, 0, "free", 1, "", b"")),
        (hot_path.answer, ("r", "t", "m", b"1", b"{}", "x", 1, 1, 1.0, 1.0, 1.0)),
        (hot_path.response, ("200 OK", [], {}, "d", "text")),
        (hot_path.body_of, ("text", b"", b"", 1)),
        (hot_path.body_of, (b"", b"", b"", 2**80)),
        (hot_path.plain_input, ("text",)),
    ]
    for call, args in calls:
        with pytest.raises((TypeError, ValueError, OverflowError)):
            call(*args)
    assert hot_path.response("200 OK", [("X", b"bytes")], {"X": 0}, "d", b"") is None
    assert hot_path.response("200 OK", [("X",)], {"X": 0}, "d", b"") is None


def native_in(code: str, **environ: str) -> str:
    given = {name: value for name, value in os.environ.items() if not name.startswith("BUNCH_")} | environ
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=given, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_it_can_be_switched_off() -> None:
    code = "import config.native, config.settings as s; s.load_settings(); print(config.native.hot_path)"
    assert native_in(code, BUNCH_NATIVE="off") == "None"


def test_a_misspelt_switch_is_an_error() -> None:
    with pytest.raises(SettingsError, match=r"BUNCH_NATIVE.*must be on or off"):
        load_settings({"BUNCH_NATIVE": "no"})


@COMPILED
@pytest.mark.parametrize(("added", "used"), [("", True), ("/* newer */", False)])
def test_a_library_of_another_source_is_not_used(added: str, used: bool, tmp_path: Path) -> None:
    """It would write messages in the form of an older version."""
    folder = tmp_path / "config" / "native"
    folder.mkdir(parents=True)
    (tmp_path / "config" / "__init__.py").touch()
    for each in (ROOT / "config" / "native").glob("*.*"):
        (folder / each.name).write_bytes(each.read_bytes())
    with (folder / "hot_path.c").open("a") as source:
        source.write(added)
    done = subprocess.run(
        [sys.executable, "-c", "from config.native import hot_path; print(hot_path is not None)"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == str(used)


def test_where_nothing_can_be_compiled_the_reason_is_told_and_it_is_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build, "load", lambda: None)
    monkeypatch.setattr(build.shutil, "which", lambda name: None)
    assert build.main([]) == 0
    assert "there is no C compiler" in capsys.readouterr().err
    assert build.main(["--required"]) == 1


@COMPILED
def test_a_source_that_does_not_compile_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise every test of this file would be skipped, and all would be green."""
    wrong = tmp_path / "hot_path.c"
    wrong.write_text("int main(void) { return nothing; }")
    monkeypatch.setattr(build, "load", lambda: None)
    monkeypatch.setattr(build, "SOURCE", wrong)
    assert build.main([]) == 1
    assert "was not compiled" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [wrong]


@COMPILED
def test_the_library_knows_its_source() -> None:
    assert source_hash() == hot_path.SOURCE_HASH
