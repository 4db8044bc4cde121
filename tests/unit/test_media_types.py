"""Media types of bodies and answers: any text is read, and only what is named is wished for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webapp.media_types import NO_WISH, is_binary, is_taken, media_type_of, wish_of

NPY, ARROW = "application/x-npy", "application/vnd.apache.arrow.stream"
TYPES = ["application/octet-stream", "image/png", "audio/wav", NPY, ARROW]
_ranges = st.tuples(
    st.sampled_from([*TYPES, "image/*", "application/json", "*/*", "text/html", "", "a/b;c"]),
    st.sampled_from(["", ";q=0", ";q=0.5", "; q=1.000", ";q=2", ";q=", ";Q=0.1", ";level=1;q=0.3"]),
)


@given(st.text(max_size=60) | st.lists(_ranges.map("".join), max_size=6).map(",".join))
def test_any_header_is_read(text: str) -> None:
    wish = wish_of(text)
    assert all(each in text.lower() for each in wish.types)
    assert not wish.takes("text/plain") or {"text/plain", "application/octet-stream"} & {*wish.types}
    media_type = media_type_of(text)
    assert media_type == media_type.lower()
    assert media_type.count("/") == bool(media_type)


@pytest.mark.parametrize(
    ("accept", "form", "taken"),
    [
        (None, "", []),
        ("*/*", "", []),
        ("application/json", "", []),
        ("image/*", "", ["image/png"]),
        ("IMAGE/PNG", "", ["image/png"]),
        ("image/jpeg, */*", "", []),
        ("application/octet-stream", "", TYPES),
        (NPY, "npy", [NPY]),
        (f"{NPY};q=0.5, {ARROW}", "arrow", [NPY, ARROW]),
        (f"{NPY};q=0.5, application/json", "", []),
        (f"application/json;q=0.5, {NPY};q=0.5", "npy", [NPY]),
        ("image/*;q=0, audio/*", "", ["audio/wav"]),
        ("image/png," * 500, "", []),
    ],
)
def test_what_is_wished_for(accept: str | None, form: str, taken: list[str]) -> None:
    wish = wish_of(accept)
    assert (wish.form, [each for each in TYPES if wish.takes(each)]) == (form, taken)
    assert taken or wish == NO_WISH or wish.types == ("image/jpeg",)


@pytest.mark.parametrize(
    ("input_type", "taken"), [("bytes", TYPES), ("npy", [TYPES[0], NPY]), ("arrow", [TYPES[0], ARROW])]
)
def test_what_each_type_of_input_takes(input_type: str, taken: list[str]) -> None:
    assert [each for each in TYPES if is_taken(input_type, each)] == taken
    assert all(map(is_binary, TYPES))
    others = ["text/plain", "application/json", "multipart/form-data", "application/x-www-form-urlencoded"]
    assert not any(is_binary(each) or is_taken(input_type, each) for each in others)
