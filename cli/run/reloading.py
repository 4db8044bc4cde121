"""`up --reload`: changes in the folder of bunch.toml reach the running stack.

bunch.toml                 read and checked ──▶ the stack drains and starts anew; with a problem it runs on
any other module or schema ──────────────────▶ the executors of the folder's models are replaced one by one,
                                               as by `reload`; one that does not load runs on
"""

from __future__ import annotations

import time
from pathlib import Path

from redis.exceptions import RedisError

from cli.base import redis_of, settings_for
from cli.supervisor.run import Work
from cli.supervisor.screen import Screen
from cli.supervisor.source_files import Settled, snapshot
from cli.supervisor.stack import Stack
from config.errors import SettingsError
from config.model_files.sources import find_module
from config.settings import Settings

_LOOK_EVERY_S = 0.3


class Reloading:
    """Watches the folder of a stack's bunch.toml, as the `work` of its loop."""

    def __init__(self, stack: Stack, screen: Screen) -> None:
        self._settings = stack.settings
        self._file = Path(stack.settings.config_file)
        self._screen = screen
        self._files = Settled(lambda: snapshot(self._file.parent, stack.state_dir))
        self.work = Work(self._watch, endless=True)

    @property
    def starts_again(self) -> bool:
        """Return whether the stack was stopped because its file has changed."""
        return self.work.done and self.work.error is None

    def _watch(self) -> None:
        """Return once the stack has to start anew."""
        while True:
            time.sleep(_LOOK_EVERY_S)
            changes = self._files.changes()
            if not changes:
                continue
            names = ", ".join(str(each.relative_to(self._file.parent)) for each in changes[:3])
            names += f" and {len(changes) - 3} more" if len(changes) > 3 else ""
            if self._file in changes:
                if self._holds():
                    self._screen.line(f"{names} changed: starting again")
                    return
            else:
                self._reload(names)

    def _holds(self) -> bool:
        try:
            settings_for(self._file)
        except SettingsError as error:
            self._screen.line(f"{self._file.name} is not used:", style="red")
            for problem in error.problems:
                self._screen.line(f"  {problem}", style="red")
            return False
        return True

    def _reload(self, names: str) -> None:
        from tasks.fleet.broadcast import tell
        from tasks.fleet.desired_state import DesiredState

        models = models_of(self._settings, self._file.parent)
        self._screen.line(f"{names} changed: reloading {', '.join(models) or 'no model, since none is of this folder'}")
        try:
            redis = redis_of(self._settings)
            for model in models:
                generation = DesiredState(redis).reload(model, {}).generation
                # Workers that do not hear it read the desired state at their next heartbeat.
                tell(self._settings, redis, "reload_model", {"model": model, "changes": {}, "generation": generation})
        except RedisError as error:
            self._screen.line(f"not reloaded: {error}", style="red")


def models_of(settings: Settings, folder: Path) -> list[str]:
    """The models whose source is a module in `folder`."""
    return [
        name
        for name, model in settings.models.items()
        if not model.is_remote and find_module(model.source.partition(":")[0], [str(folder)]) is not None
    ]
