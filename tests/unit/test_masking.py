"""A value as it may be shown: never any part of a secret, however it is written."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from config.secrets.masking import MASK, masked_url, shown, shown_of_unknown
from config.secrets.secret_settings import SECRET_FIELDS

# Raw, as people write them: with all that means something in a URL. None of its pieces is a part of anything else here.
SECRET = st.text(alphabet="QXZ4567@:/?#%&=;,.[]\\ ", min_size=2, max_size=16)
USER = st.sampled_from(["", "bunch"])
SCHEME = st.sampled_from(["redis", "rediss", "postgresql", "https", "unix", "redis+sentinel"])


def pieces(secret: str) -> list[str]:
    """Runs of what is only in the secret, long enough to matter."""
    runs = "".join(each if each in "QXZ4567" else " " for each in secret).split()
    return [run for run in runs if not run.isdigit()]


@given(scheme=SCHEME, user=USER, secret=SECRET, behind=st.sampled_from(["", "/0", "/0?db=1", "?db=1", "/a/b#c"]))
def test_a_password_is_never_shown(scheme: str, user: str, secret: str, behind: str) -> None:
    masked = masked_url(f"{scheme}://{user}:{secret}@host.example:6379{behind}")
    assert not any(piece in masked for piece in pieces(secret)), masked


@given(scheme=SCHEME, key=st.sampled_from(["password", "token", "key", "sig", "x"]), secret=SECRET)
def test_nor_one_in_the_query_or_the_fragment(scheme: str, key: str, secret: str) -> None:
    for url in (
        f"{scheme}://host/0?{key}={secret}",
        f"{scheme}://host/0?db=1&{key}={secret}",
        f"{scheme}://host/0#{secret}",
    ):
        masked = masked_url(url)
        assert not any(piece in masked for piece in pieces(secret)), masked


@given(secret=SECRET)
def test_nor_one_that_stands_alone(secret: str) -> None:
    # `word:1234` is an address whose scheme was forgotten, by all appearances.
    assume(not re.fullmatch(r"[^@:]*:\d{1,5}", secret))
    assert not any(piece in masked_url(secret) for piece in pieces(secret))
    assert not any(piece in str(shown_of_unknown(secret)) for piece in pieces(secret))
    if ":" not in secret:
        assert not any(piece in masked_url(f"https://{secret}:@host/") for piece in pieces(secret))


@given(field=st.sampled_from(sorted(SECRET_FIELDS)), secret=SECRET)
def test_a_setting_that_is_a_secret_shows_none_of_it(field: str, secret: str) -> None:
    assert not any(piece in str(shown(field, secret)) for piece in pieces(secret))


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/0"),
        ("redis://:pw@h:6379/0", f"redis://:{MASK}@h:6379/0"),
        ("rediss://bunch:pw@h/0?ssl_cert_reqs=required", f"rediss://bunch:{MASK}@h/0?ssl_cert_reqs=required"),
        ("unix:///run/valkey.sock?db=0&password=pw", f"unix:///run/valkey.sock?db=0&password={MASK}"),
        ("redis://:a#b@h:6379/0", f"redis://{MASK}"),
        ("sentinel://a:26379,b:26379/main/0", "sentinel://a:26379,b:26379/main/0"),
        ("redis://[::1]:6379/0", "redis://[::1]:6379/0"),
        ("https://token@api.example/predict?v=1", f"https://{MASK}@api.example/predict?{MASK}"),
        ("localhost:6379", "localhost:6379"),
        ("", ""),
    ],
)
def test_what_says_where_it_leads_is_shown(url: str, masked: str) -> None:
    assert masked_url(url) == masked
