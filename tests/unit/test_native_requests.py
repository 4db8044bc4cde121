"""Plain requests as C reads them, against the twins in Python, which are the specification."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.native import hot_path
from webapp.api import short_inference
from webapp.http import head

COMPILED = pytest.mark.skipif(hot_path is None, reason="SKIPPED: the hot path was not compiled here; make says why")


@COMPILED
@given(
    st.binary(max_size=30) | st.sampled_from([b"7", b"07", b"7\r\n", b"123456789", b"1234567890"]),
    st.sampled_from([b"", b"POST / HTTP/1.1\r\nContent-Length: "]),
    st.sampled_from([b"\r\n\r\n", b"\r\nHost: h\r\n\r\n"]),
    st.integers(0, 12),
    st.integers(0, 80),
)
def test_both_find_the_same_body(digits: bytes, before: bytes, after: bytes, length: int, longest: int) -> None:
    whole = before + b"%d" % length + after + b"x" * length
    for data in (whole, before + digits + after + b"x" * 7, whole + b"x", whole[:-1], digits + whole):
        assert hot_path.body_of(data, before, after, longest) == head.body_of(data, before, after, longest)
    found = hot_path.body_of(whole, before, after, len(whole))
    assert found == (b"x" * length if length else None)


MEMBERS = st.lists(
    st.tuples(
        st.sampled_from(['"input"', '"model"', '"parameters"', '"client_id"', '"inpu\\u0074"']),
        st.text(st.characters(max_codepoint=300), max_size=6).map(lambda text: msgspec.json.encode(text).decode())
        | st.sampled_from(["null", "1", "{}", '"a\\"b"', '"\x7f"', '"', '"a', "nul"]),
    ),
    max_size=4,
)


@COMPILED
@given(MEMBERS, st.sampled_from(["", " ", "\r\n\t "]), st.sampled_from(["", "}", ",", "\ufeff", "x"]))
def test_what_c_reads_of_a_plain_body_python_reads_too(members: list[tuple[str, str]], blank: str, more: str) -> None:
    text = "{" + ",".join(f"{blank}{name}{blank}:{blank}{value}{blank}" for name, value in members) + "}" + blank + more
    body = text.encode()
    for cut in (body, body[:-1], body[1:]):
        found = hot_path.plain_input(cut)
        assert found is None or found == short_inference.plain_input(cut)


@COMPILED
@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b'{"input":"a b~"}', (b'"a b~"', None)),
        (b' {\n"model" : "m", "input":\t""}\r\n', (b'""', "m")),
        (b'{"input":"a\\n"}', None),
        (b'{"input":"\x7f"}', None),
        (b'{"input":"a","input":"b"}', None),
    ],
)
def test_a_plain_body_is_read_in_c(body: bytes, found: object) -> None:
    assert hot_path.plain_input(body) == found
