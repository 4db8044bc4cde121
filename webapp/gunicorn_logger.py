"""gunicorn's logger with our configuration from its first line on: its own starts before any of its hooks is called."""

from __future__ import annotations

import logging.config
from typing import Any

from gunicorn.glogging import Logger

from config.logging import logging_config
from config.settings import load_settings


class GunicornLog(Logger):
    """Not `logconfig_dict`: with that gunicorn formats an access-log line per request, wanted or not."""

    def setup(self, cfg: Any) -> None:
        super().setup(cfg)
        logging.config.dictConfig(logging_config(load_settings()))
