"""JSON Web Tokens: whom they name, what is refused, what is remembered and for how long."""

from __future__ import annotations

import json
import time
from pathlib import Path

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.settings import Settings
from config.tiers import Tier
from tests import issuer
from webapp.identity import tokens
from webapp.identity.jwks import KeySet
from webapp.identity.tokens import MAX_LENGTH, TokenVerifier


class Bench:
    """A verifier with a file of keys and a clock of its own. PyJWT goes by the real one: tokens are made for that."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.file = folder / "jwks.json"
        issuer.write_jwks(self.file)
        given = {
            "auth": "jwt", "jwt_jwks": str(self.file), "jwt_secret": issuer.SECRET,
            "jwt_audience": issuer.AUDIENCE, "jwt_issuer": issuer.ISSUER,
        }  # fmt: skip
        self.settings = Settings(**(given | settings))  # type: ignore[arg-type]
        self.monotonic = 100.0
        self.now = time.time()
        self.keys = KeySet(self.settings, clock=lambda: self.monotonic)
        self.verifier = TokenVerifier(self.settings, self.keys, clock=lambda: self.now)
        self.keys.refresh()

    def find(self, text: str):
        return self.verifier.find(text)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "HS256"])
def test_a_good_token_names_its_owner_and_tier(bench: Bench, algorithm: str) -> None:
    caller = bench.find(issuer.token(bench.now, algorithm, tier="enterprise"))
    assert caller is not None
    assert (caller.owner, caller.tier) == ("jwt:alice", Tier.ENTERPRISE)
    assert caller.key_id.isalnum()


def test_one_subject_is_one_caller_whichever_token_it_sends(bench: Bench) -> None:
    first, second = bench.find(issuer.token(bench.now)), bench.find(issuer.token(bench.now, "ES256"))
    other = bench.find(issuer.token(bench.now, sub="bob"))
    assert first is not None
    assert other is not None
    assert first == second
    assert first.key_id != other.key_id


def test_claims_may_be_called_otherwise(tmp_path: Path) -> None:
    bench = Bench(tmp_path, jwt_tier_claim="plan", jwt_owner_claim="tenant", jwt_default_tier=Tier.ENTERPRISE)
    named = bench.find(issuer.token(bench.now, plan="free", tenant="acme"))
    assert named is not None
    assert (named.owner, named.tier) == ("jwt:acme", Tier.FREE)
    unnamed = bench.find(issuer.token(bench.now, tenant="acme"))
    assert unnamed is not None
    assert unnamed.tier is Tier.ENTERPRISE


FORGERIES = {
    "alg none": issuer.unsigned,
    "alg None": lambda now: issuer.unsigned(now, "None"),
    "alg empty": lambda now: issuer.unsigned(now, ""),
    "HS256 with the RSA public key": issuer.confused,
    "HS256 with no secret": lambda now: issuer.signed_with(b"", {"alg": "HS256"}, issuer.claims(now)),
    "HS384": lambda now: jwt.encode(issuer.claims(now), issuer.SECRET * 2, "HS384"),
    "PS256": lambda now: jwt.encode(issuer.claims(now), issuer.rsa_key(), "PS256", headers={"kid": "rsa-0"}),
    "ES256 under an RSA key's id": lambda now: issuer.token(now, "ES256", key_id="rsa-0"),
    "another RSA key": lambda now: issuer.token(now, number=1),
    "a key that nobody knows": lambda now: issuer.token(now, key_id="nobody's"),
    "a key in its own header": issuer.bringing_its_own_key,
    "changed after it was signed": issuer.changed_after_signing,
    "wrong audience": lambda now: issuer.token(now, aud="another"),
    "no audience": lambda now: issuer.token(now, aud=None),
    "wrong issuer": lambda now: issuer.token(now, iss="https://evil.example"),
    "no issuer": lambda now: issuer.token(now, iss=None),
    "expired": lambda now: issuer.token(now, exp=int(now) - 1),
    "never expires": lambda now: issuer.token(now, exp=None),
    "expires in words": lambda now: issuer.token(now, exp="tomorrow"),
    "not yet": lambda now: issuer.token(now, nbf=int(now) + 60),
    "no subject": lambda now: issuer.token(now, sub=None),
    "an empty subject": lambda now: issuer.token(now, sub=""),
    "a subject of two lines": lambda now: issuer.token(now, sub="alice\nbob"),
    "an endless subject": lambda now: issuer.token(now, sub="a" * 200),
    "an unknown tier": lambda now: issuer.token(now, tier="gold"),
    "a tier that is a list": lambda now: issuer.token(now, tier=["enterprise"]),
    "two parts": lambda now: issuer.token(now).rpartition(".")[0],
    "four parts": lambda now: issuer.token(now) + ".x",
    "too long": lambda now: issuer.token(now, sub="alice", padding="x" * MAX_LENGTH),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_forgeries_find_nobody(bench: Bench, forgery: str) -> None:
    text = FORGERIES[forgery](bench.now)
    assert bench.find(text) is None
    assert bench.find(text) is None
    assert bench.find(issuer.token(bench.now)) is not None


@given(
    st.text(st.characters(max_codepoint=255)) | st.from_regex(r"e[\w-]{0,20}\.[\w-]{0,20}\.[\w-]{0,20}", fullmatch=True)
)
def test_rubbish_finds_nobody(text: str) -> None:
    keys = KeySet(Settings(auth="jwt", jwt_secret=issuer.SECRET))
    assert TokenVerifier(Settings(auth="jwt", jwt_secret=issuer.SECRET), keys).find(text) is None


def test_without_a_secret_nothing_shared_is_taken(tmp_path: Path) -> None:
    bench = Bench(tmp_path, jwt_secret="")
    assert bench.find(issuer.token(bench.now, "HS256")) is None
    assert bench.find(issuer.confused(bench.now)) is None


def test_only_the_algorithms_of_the_settings(tmp_path: Path) -> None:
    bench = Bench(tmp_path, jwt_algorithms="ES256")
    assert bench.find(issuer.token(bench.now, "ES256")) is not None
    assert bench.find(issuer.token(bench.now, "RS256")) is None
    assert bench.find(issuer.token(bench.now, "HS256")) is None


def test_a_token_is_checked_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    text = issuer.token(bench.now)
    first = bench.find(text)
    monkeypatch.setattr(tokens.jwt, "decode", lambda *_, **__: pytest.fail("checked again"))
    assert bench.find(text) is first


def test_and_not_remembered_beyond_its_end(bench: Bench) -> None:
    text = issuer.token(bench.now)
    assert bench.find(text) is not None
    bench.now += 299
    assert bench.find(text) is not None
    bench.now += 2
    assert bench.find(text) is None


def test_a_bounded_number_is_remembered(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "MAX_REMEMBERED", 3)
    for number in range(10):
        assert bench.find(issuer.token(bench.now, "HS256", sub=f"s{number}")) is not None
    assert len(bench.verifier._known) == 3


def test_keys_rotate(bench: Bench) -> None:
    old, new = issuer.token(bench.now), issuer.token(bench.now, number=1, key_id="rsa-1")
    assert bench.find(old) is not None
    assert bench.find(new) is None

    issuer.write_jwks(bench.file, rsa_keys={"rsa-0": 0, "rsa-1": 1})
    assert bench.find(new) is None, "looked again too soon: strangers could have us ask the issuer all day"
    bench.monotonic += 60
    assert bench.find(new) is not None
    assert bench.find(old) is not None

    issuer.write_jwks(bench.file, rsa_keys={"rsa-1": 1})
    bench.monotonic += 60
    bench.keys.refresh()
    assert bench.find(old) is None, "remembered, though its key is the issuer's no more"
    assert bench.find(new) is not None


def test_keys_that_cannot_be_read_leave_those_there_were(bench: Bench) -> None:
    text = issuer.token(bench.now, "ES256")
    for broken in (b"", b"[]", b'{"keys": 5}'):
        bench.file.write_bytes(broken)
        bench.keys.refresh()
        bench.verifier._known.clear()
        assert bench.find(text) is not None


def test_one_key_that_is_none_spoils_no_other(bench: Bench) -> None:
    good = json.loads(bench.file.read_bytes())["keys"]
    bench.file.write_text(json.dumps({"keys": [{"kty": "RSA", "kid": "bad", "n": 5}, *good]}))
    bench.keys.refresh()
    assert bench.find(issuer.token(bench.now)) is not None


def test_a_shared_secret_in_a_jwks_is_left_out(tmp_path: Path) -> None:
    bench = Bench(tmp_path, jwt_secret="")
    bench.file.write_bytes(
        b'{"keys": [{"kty": "oct", "kid": "o", "k": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}]}'
    )
    bench.keys.refresh()
    assert not bench.keys.loaded
    secret = bytes(32)
    assert bench.find(issuer.signed_with(secret, {"alg": "HS256", "kid": "o"}, issuer.claims(bench.now))) is None


def test_a_jwks_of_one_key_needs_no_ids(bench: Bench) -> None:
    assert bench.find(issuer.token(bench.now, "ES256", key_id="")) is not None
    issuer.write_jwks(bench.file, ec_keys={"a": 0, "b": 1})
    bench.keys.refresh()
    assert bench.find(issuer.token(bench.now, "ES256", key_id="", sub="two")) is None
