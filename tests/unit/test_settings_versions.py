"""`[models.<name>.versions.<version>]`: what a version inherits, and what is told of a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest

from config.errors import SettingsError
from config.settings import Settings, load_settings

TWO = """
[models.m]
source = "a:B"
max_batch_size = 8
policy = "fixed"
options = { size = 1 }
[models.m.versions.2]
source = "a:C"
weight = 5
[models.m.versions."2.1-beta"]
max_batch_size = 4
options = { size = 2 }
[models.n]
source = "a:N"
"""


def read(tmp_path: Path, text: str) -> Settings:
    file = tmp_path / "bunch.toml"
    file.write_text(text)
    return load_settings({}, str(file))


def problems(tmp_path: Path, text: str) -> list[str]:
    with pytest.raises(SettingsError) as refused:
        read(tmp_path, text)
    return [str(each) for each in refused.value.problems]


def test_a_version_is_a_model_that_has_the_keys_of_its_own_table_over_those_of_the_model(tmp_path: Path) -> None:
    models = read(tmp_path, TWO).models
    assert list(models) == ["m", "m@2", "m@2.1-beta", "n"]
    own, second, beta, other = models.values()
    assert [each.version for each in models.values()] == ["1", "2", "2.1-beta", "1"]
    assert [each.family for each in models.values()] == ["m", "m", "m", "n"]
    assert (second.source, second.policy, second.max_batch_size, second.weight) == ("a:C", "fixed", 8, 5.0)
    assert (beta.source, beta.options, beta.max_batch_size, beta.weight) == ("a:B", {"size": 2}, 4, 0.0)
    assert (own.weight, other.weight) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("own", "model", "expected"),
    [
        ('devices = ["cpu"]', 'device = "cpu"\ninstances = 2', {"devices": ("cpu",), "instances": 1, "device": "auto"}),
        ("instances = 2", 'devices = ["cpu"]', {"devices": None, "instances": 2}),
        ("batch_sizes = [1, 2]", "max_batch_size = 64", {"batch_sizes": (1, 2), "max_batch_size": 2}),
        ('source = "a:C"', 'urls = ["http://h/a"]', {"source": "a:C", "urls": ()}),
    ],
)
def test_a_key_of_its_own_replaces_those_that_it_excludes(
    tmp_path: Path, own: str, model: str, expected: dict[str, object]
) -> None:
    source = "" if "urls" in model else 'source = "a:B"\n'
    version = read(tmp_path, f"[models.m]\n{source}{model}\n[models.m.versions.2]\n{own}\n").models["m@2"]
    assert {key: getattr(version, key) for key in expected} == expected


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("weight = 5", ["[models.m] weight = 5: is a key of [models.m.versions.<version>]"]),
        ("[models.m.versions.1]", ["[models.m.versions.1] = '1': is the version of [models.m] itself"]),
        ('[models.m.versions.2]\nversion = "3"', ["[models.m.versions.2] version = '3': is 2 already"]),
        ('[models.m.versions."a b"]', ["[models.m.versions.a b] = 'a b': must have only letters"]),
        ("version = 'a\"b'\n[models.m.versions.2]", ["[models.m] version = 'a\"b': must have only letters"]),
        ("[models.m.versions.2]\nweight = 101", ["[models.m.versions.2] weight = 101: Expected `float` <= 100"]),
        ("[models.m.versions.2]\nweights = 5", ["[models.m.versions.2] weights = 5: unknown; did you mean weight?"]),
        ("versions = 2", ["[models.m.versions] = '…': must be tables"]),
        (
            "[models.m.versions.2]\nweight = 60\n[models.m.versions.3]\nweight = 50",
            ["[models.m.versions] = '…': weights are per cent, at most 100 for all versions of a model together"],
        ),
        # What is inherited is told once, of the table that has it.
        ("max_batch_size = 0\n[models.m.versions.2]\n[models.m.versions.3]", ["[models.m] max_batch_size = 0"]),
        ("[models.m.versions.2]\nsource = 1", ["[models.m.versions.2] source = 1: "] * 2),
    ],
)  # fmt: skip
def test_a_wrong_version_is_told_with_what_would_be_right(tmp_path: Path, text: str, told: list[str]) -> None:
    found = problems(tmp_path, f'[models.m]\nsource = "a:B"\n{text}\n')
    assert len(found) == len(told), found
    for each, begins in zip(sorted(found), sorted(told), strict=True):
        assert each.startswith(begins)


def test_weights_may_be_exactly_the_whole_in_hundredths(tmp_path: Path) -> None:
    weights = (82.79, 8.06, 9.15)
    assert sum(weights) > 100
    text = "".join(f"[models.m.versions.{number}]\nweight = {each}\n" for number, each in enumerate(weights, 2))
    assert len(read(tmp_path, f'[models.m]\nsource = "a:B"\n{text}').models) == 4


@pytest.mark.parametrize("version", ["1.2+cu12", "3f2c9e1bd07a4c5e8f60123456789abcdef01234"])
def test_the_models_own_version_may_be_a_commit_or_have_a_local_part(tmp_path: Path, version: str) -> None:
    text = f'[models.m]\nsource = "a:B"\nversion = "{version}"\n[models.m.versions.2]\n'
    assert read(tmp_path, text).models["m"].version == version


def test_a_pool_names_each_version_that_it_serves(tmp_path: Path) -> None:
    pools = '[pools.a]\nmodels = ["m", "m@2.1-beta", "n"]\n'
    assert any("m@2" in each for each in problems(tmp_path, TWO + pools))
    assert read(tmp_path, f'{TWO}{pools}[pools.b]\nmodels = ["m@2"]\n').pools["b"].models == ("m@2",)
