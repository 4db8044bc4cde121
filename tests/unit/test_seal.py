"""A frontend's seal: what it covers, and what is believed of a message without it."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batching.fast_header import HEAD
from batching.ports import UnreadableMessage
from config.errors import SettingsError
from config.secrets.message_keys import fingerprint, message_keys
from config.settings import Settings
from config.tiers import Tier
from tasks.client.dedup import DedupIdentity
from tasks.client.submission import Submission
from tasks.protocol.caller import Caller
from tasks.protocol.messages import read_message
from tasks.protocol.outgoing import MessageWriter, Outgoing
from tasks.protocol.quota import Quota
from tasks.protocol.seal import Seal
from tests.fakes.messages import celery_message, entry

KEY, OTHER = b"k" * 32, b"o" * 32
TIMES = b"1893456000000;1893456000000;1700000000000;00;0;"


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


def message(seal: Seal | None = None, input: bytes = b'"x"', owner: str = "alice", parameters: bytes = b"{}") -> bytes:
    out = Outgoing(
        "00000000-0000-8000-a000-000000000001",
        Submission("m", Caller("key", owner, Tier.PAID), input, 1.0, parameters),
        "bunch.m.paid",
        1000,
        1000,
        60_000,
        quota=Quota.of("key", 60, 1),
        once=DedupIdentity(question="q" * 32, keep_ms=5),
    )
    return HEAD + TIMES + MessageWriter("bunch:reply:here", seal).rest(out, 1.0)


def test_what_a_frontend_has_sealed_is_believed() -> None:
    raw = message(Seal((KEY,)))
    assert json.loads(raw)["properties"]["reply_to"] == "bunch:reply:here"
    request = read_message(entry(raw), 1000, seal=Seal((KEY,)))
    assert (request.owner, request.question, request.reply_to) == ("alice", "q" * 32, "bunch:reply:here")
    assert (request.sealed, request.foreign) == (True, False)


CHANGES = [
    (b"000000000001", b"000000000002"),
    (b'"bunch_owner":"alice"', b'"bunch_owner":"bob"'),
    (b"qqq;5", b"qqr;5"),
    (b"bunch:reply:here", b"bunch:reply:there"),
    (b'\\"x\\"', b'\\"y\\"'),
    (b'{\\"parameters\\":{}', b'{\\"parameters\\":{\\"k\\":1}'),
    (b'"bunch_owner":"alice",', b""),
]


@pytest.mark.parametrize(("old", "new"), CHANGES)
def test_nothing_that_it_covers_can_be_changed(old: bytes, new: bytes) -> None:
    raw = message(Seal((KEY,)))
    assert old in raw
    with pytest.raises(UnreadableMessage):
        read_message(entry(raw.replace(old, new)), 1000, seal=Seal((KEY,)))


def test_what_scripts_change_is_not_covered() -> None:
    raw = message(Seal((KEY,)))
    later = HEAD + b"1893456000009;1893456000009;1700000000009;03;2;1;" + raw[len(HEAD + TIMES) + 2 :]
    request = read_message(entry(later), 1000, seal=Seal((KEY,)))
    assert (request.sealed, request.attempt, request.tracked) == (True, 4, True)


@given(values, st.dictionaries(st.text(), values, max_size=3), st.text(max_size=20))
def test_whatever_is_asked_the_seal_fits(value: object, parameters: dict[str, object], owner: str) -> None:
    raw = message(Seal((KEY,)), msgspec.json.encode(value), owner, msgspec.json.encode(parameters))
    assert read_message(entry(raw), 1000, seal=Seal((KEY,))).sealed


def test_a_previous_key_is_good_for_reading_alone() -> None:
    assert read_message(entry(message(Seal((OTHER,)))), 1000, seal=Seal((KEY, OTHER))).sealed
    with pytest.raises(UnreadableMessage):
        read_message(entry(message(Seal((KEY, OTHER)))), 1000, seal=Seal((OTHER,)))


@pytest.mark.parametrize(
    "raw",
    [
        message(),
        message(Seal((OTHER,))),
        message(owner=""),
        celery_message(["x"], headers={"bunch_seal": "0" * 24}),
        celery_message(["x"], headers={"bunch_owner": "alice"}),
        celery_message(["x"], headers={"bunch_once": "q;5"}),
    ],
)  # fmt: skip
def test_marks_without_a_seal_are_refused(raw: bytes) -> None:
    with pytest.raises(UnreadableMessage, match="BUNCH_MESSAGE_SECRET") as caught:
        read_message(entry(raw), 1000, seal=Seal((KEY,)))
    assert caught.value.task_id


def test_a_plain_message_runs_and_its_reply_goes_to_no_frontend() -> None:
    raw = celery_message(["x"], reply_to="bunch:reply:here")
    request = read_message(entry(raw), 1000, seal=Seal((KEY,)))
    assert (request.input, request.reply_to, request.sealed, request.foreign) == (b'"x"', "", False, True)


def test_where_nothing_is_sealed_a_frontends_message_is_taken_as_it_is() -> None:
    request = read_message(entry(message()), 1000)
    assert (request.owner, request.reply_to, request.sealed, request.foreign) == (
        "alice",
        "bunch:reply:here",
        False,
        False,
    )


def test_keys_come_from_the_secret_else_from_the_state_folder_and_with_auth_off_from_nowhere(tmp_path: Path) -> None:
    state = tmp_path / "state"
    assert message_keys(Settings(models={}, state_dir=str(state))) == ()
    assert not state.exists()
    own = message_keys(Settings(models={}, state_dir=str(state), auth="keys"))
    assert own == message_keys(Settings(models={}, state_dir=str(state), auth="jwt"))
    assert (state / "message.key").stat().st_mode & 0o777 == 0o600
    assert list(state.iterdir()) == [state / "message.key"]
    new = Settings(models={}, message_secret="new" * 6, message_secret_previous="old" * 6)
    assert message_keys(new)[1:] == message_keys(Settings(models={}, message_secret="old" * 6))
    prints = {fingerprint(keys) for keys in (own, message_keys(new), message_keys(new)[1:], ())}
    assert len(prints) == 4


def test_a_state_folder_that_can_hold_no_key_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match="BUNCH_MESSAGE_SECRET"):
        message_keys(Settings(models={}, state_dir=str(tmp_path / "file"), auth="keys"))


@pytest.mark.parametrize("secrets", [("short", ""), ("long enough to be one", "short"), ("", "long enough to be one")])
def test_a_secret_that_can_be_guessed_stops_the_start(secrets: tuple[str, str]) -> None:
    secret, previous = secrets
    with pytest.raises(SettingsError, match="BUNCH_MESSAGE_SECRET") as caught:
        message_keys(Settings(models={}, message_secret=secret, message_secret_previous=previous))
    assert "short" not in str(caught.value)
