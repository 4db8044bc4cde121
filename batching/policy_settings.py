"""Makes a model's policy from its settings."""

from __future__ import annotations

from batching.policy import NamedPolicy, TuneError, make
from config.errors import Problem, SettingsError
from config.settings import ModelSettings


def make_policy(model: ModelSettings) -> NamedPolicy:
    """The policy that bunch.toml names for a model.

    Raises:
        SettingsError: its `policy_options` are not options of this policy.
    """
    try:
        return make(model.policy, model.max_batch_size, model.max_wait_s, model.policy_options)
    except TuneError as error:
        key = f"[models.{model.name}] policy_options"
        raise SettingsError((Problem(key, model.policy_options, str(error)),)) from None
