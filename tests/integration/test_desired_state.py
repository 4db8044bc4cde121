"""The desired state is kept: it outlives whoever was told."""

from __future__ import annotations

import pytest
from redis import Redis

from config.settings import ModelSettings
from config.tiers import TIERS, Tier
from tasks.fleet.desired_state import BadChange, Desired, DesiredState, checked, pairs, weight_of, with_desired

MODEL = ModelSettings(name="m", source="pkg:Model")


@pytest.fixture
def controls(redis: Redis) -> DesiredState:
    return DesiredState(redis)


def desired(controls: DesiredState) -> Desired:
    return controls.read(("m",))["m"]


def test_nothing_is_asked_for_at_first(controls: DesiredState) -> None:
    assert desired(controls) == Desired()
    assert with_desired(MODEL, desired(controls)) == MODEL


def test_tiers_are_paused_and_resumed_one_by_one(controls: DesiredState) -> None:
    controls.pause("m")
    controls.resume("m", (Tier.PAID,))
    assert desired(controls).paused == {Tier.ENTERPRISE, Tier.FREE}
    controls.resume("m", TIERS)
    controls.pause("m", (Tier.FREE,))
    controls.pause("m", (Tier.FREE,))
    assert desired(controls).paused == {Tier.FREE}
    assert controls.read(("other",))["other"].paused == frozenset()


def test_a_tuned_key_holds_until_it_is_given_back(controls: DesiredState) -> None:
    controls.tune(MODEL, {"max_batch_size": "8", "policy": "fixed"})
    controls.tune(MODEL, {"max_wait_ms": 40})
    now = with_desired(MODEL, desired(controls))
    assert (now.max_batch_size, now.policy, now.max_wait_ms) == (8, "fixed", 40)
    controls.tune(MODEL, {"max_batch_size": "", "policy": None})
    assert desired(controls).tuned == {"max_wait_ms": 40}


@pytest.mark.parametrize(
    "changes",
    [{"max_batch_size": "0"}, {"policy": "psychic"}, {"max_wait_ms": "soon"}, {"instances": "3"}, {"source": "a:B"}],
)
def test_a_bad_change_changes_nothing_and_names_itself(controls: DesiredState, changes: dict[str, str]) -> None:
    with pytest.raises(BadChange, match=next(iter(changes))):
        controls.tune(MODEL, {"max_wait_ms": "7", **changes})
    assert desired(controls) == Desired()


def test_what_a_policy_has_of_its_own_can_be_tuned_too(controls: DesiredState) -> None:
    controls.tune(MODEL, {"policy": "slo", "spare": "2"})
    now = with_desired(MODEL, desired(controls))
    assert (now.policy, now.policy_options) == ("slo", {"spare": "2"})
    with pytest.raises(BadChange, match="spare"):
        # It is none of the other policy's.
        controls.tune(MODEL, {"policy": "idle"})
    assert with_desired(MODEL, desired(controls)).policy == "slo"


def test_what_no_longer_goes_with_the_file_is_left_out() -> None:
    assert with_desired(MODEL, Desired(tuned={"policy": "idle", "spare": 2})) == MODEL


def test_each_reload_is_a_generation_and_one_that_is_refused_counts_for_nothing(controls: DesiredState) -> None:
    controls.reload("m", {"source": "pkg:New", "options": '{"a": 1}'})
    assert with_desired(MODEL, desired(controls)).source == "pkg:New"
    assert with_desired(MODEL, desired(controls)).options == {"a": 1}
    assert controls.reload("m", {"source": "pkg:Broken"}).generation == 2
    controls.refuse("m", 2, "these weights are not there")
    assert with_desired(MODEL, desired(controls)) == MODEL
    assert desired(controls).refusal == "these weights are not there"
    controls.reload("m", {"source": "pkg:Mended"})
    assert with_desired(MODEL, desired(controls)).source == "pkg:Mended"


def test_words_of_a_command_line() -> None:
    assert pairs(["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}
    with pytest.raises(BadChange, match="key=value"):
        pairs(["a"])
    with pytest.raises(BadChange, match="options"):
        checked({"options": "{"}, ["options"])


def version(number: int, weight: float = 0.0) -> ModelSettings:
    return ModelSettings(name=f"m@{number}", source="pkg:Model", version=str(number), weight=weight)


def test_a_weight_holds_until_it_is_given_back_and_is_no_setting_of_the_policy(controls: DesiredState) -> None:
    two, three = version(2, 5), version(3, 20)
    controls.tune(two, {"weight": "10.5", "max_wait_ms": "7"}, (two, three))
    now = controls.read(("m@2",))["m@2"]
    assert (now.weight, weight_of(two, now), now.tuned) == (10.5, 10.5, {"max_wait_ms": 7})
    assert with_desired(two, now).max_wait_ms == 7
    controls.tune(two, {"weight": ""}, (two, three))
    assert weight_of(two, controls.read(("m@2",))["m@2"]) == 5


@pytest.mark.parametrize(
    ("model", "weight", "says"),
    [
        (version(2), "81", "at most 100 for all versions of a model together; there are 81 of m@2 . 20 of m@3"),
        (version(2), "-1", "weight = '-1'"),
        (version(2), "101", "weight = '101'"),
        (version(2), "much", "weight = 'much'"),
        (MODEL, "5", "m has what its other versions leave: tune m@2 weight="),
    ],
)
def test_a_weight_that_there_is_not_is_refused_and_changes_nothing(
    controls: DesiredState, model: ModelSettings, weight: str, says: str
) -> None:
    with pytest.raises(BadChange, match=says):
        controls.tune(model, {"max_wait_ms": 7, "weight": weight}, (version(2), version(3, 20)))
    assert controls.read((model.name,))[model.name] == Desired()


def test_a_model_without_versions_has_no_weight_and_a_version_keeps_its_name(controls: DesiredState) -> None:
    with pytest.raises(BadChange, match=r"add \[models.m.versions.<version>\]"):
        controls.tune(MODEL, {"weight": 5})
    with pytest.raises(BadChange, match="m@2 is asked for by it"):
        controls.reload("m@2", {"version": "3"})
