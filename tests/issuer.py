"""An issuer of tokens: keys of every kind, a JWKS with their public halves, and forgeries."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from functools import cache
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

SECRET = "a shared secret of more than thirty-two bytes"
AUDIENCE, ISSUER = "bunch", "https://issuer.example"


@cache
def rsa_key(number: int = 0) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


@cache
def ec_key(number: int = 0) -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def jwks(*, rsa_keys: dict[str, int] | None = None, ec_keys: dict[str, int] | None = None) -> bytes:
    """A JWKS with key id → number of the key."""
    keys: list[dict[str, Any]] = []
    for key_id, number in ({"rsa-0": 0} if rsa_keys is None else rsa_keys).items():
        keys.append({**RSAAlgorithm.to_jwk(rsa_key(number).public_key(), as_dict=True), "kid": key_id, "use": "sig"})
    for key_id, number in ({"ec-0": 0} if ec_keys is None else ec_keys).items():
        keys.append({**ECAlgorithm.to_jwk(ec_key(number).public_key(), as_dict=True), "kid": key_id, "alg": "ES256"})
    return json.dumps({"keys": keys}).encode()


def write_jwks(path: Path, **keys: Any) -> None:
    """Replace the file atomically, as an issuer does."""
    beside = path.with_suffix(".new")
    beside.write_bytes(jwks(**keys))
    beside.rename(path)


def claims(now: float, **others: Any) -> dict[str, Any]:
    """Valid claims, changed by `others`; None leaves a claim out."""
    good = {"sub": "alice", "aud": AUDIENCE, "iss": ISSUER, "exp": int(now) + 300, "tier": "paid"}
    return {name: value for name, value in (good | others).items() if value is not None}


def token(now: float, algorithm: str = "RS256", *, number: int = 0, key_id: str | None = None, **others: Any) -> str:
    key: Any = {"RS256": rsa_key, "ES256": ec_key}.get(algorithm, lambda _: SECRET)(number)
    kid = {"RS256": "rsa-0", "ES256": "ec-0"}.get(algorithm) if key_id is None else key_id
    return jwt.encode(claims(now, **others), key, algorithm, headers={"kid": kid} if kid else None)


def unsigned(now: float, spelling: str = "none") -> str:
    """`alg: none`, in one of its spellings."""
    return f"{_part({'alg': spelling, 'typ': 'JWT'})}.{_part(claims(now))}."


def confused(now: float) -> str:
    """HS256 with the issuer's public RSA key, which everybody has, as the secret."""
    public = rsa_key().public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return signed_with(public, {"alg": "HS256", "typ": "JWT", "kid": "rsa-0"}, claims(now))


def bringing_its_own_key(now: float) -> str:
    """A token with the key for its own verification in its header."""
    public = RSAAlgorithm.to_jwk(rsa_key(99).public_key(), as_dict=True)
    return jwt.encode(claims(now), rsa_key(99), "RS256", headers={"jwk": public, "jku": "https://evil.example/jwks"})


def changed_after_signing(now: float) -> str:
    head, _, signature = token(now).split(".")
    return f"{head}.{_part(claims(now, tier='enterprise'))}.{signature}"


def signed_with(secret: bytes, header: dict[str, Any], payload: dict[str, Any]) -> str:
    signed = f"{_part(header)}.{_part(payload)}"
    signature = hmac.new(secret, signed.encode(), hashlib.sha256).digest()
    return f"{signed}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


def _part(document: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(document).encode()).rstrip(b"=").decode()
