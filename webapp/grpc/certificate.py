"""The certificate of the gRPC server, which HUP renews without a new process.

Callers are not identified by certificates here: the doorkeeper decides by the metadata, before gRPC tells who is there.
"""

from __future__ import annotations

import logging
from pathlib import Path

import grpc

from config.errors import SettingsError
from config.front_tls import date_problems, now_utc, server_context
from config.settings import Settings

logger = logging.getLogger(__name__)


class Certificate:
    """The files of the settings. Raises SettingsError if they cannot be used."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        server_context(settings)
        self._current = self._read()
        self._is_new = False

    def credentials(self) -> grpc.ServerCredentials:
        return grpc.dynamic_ssl_server_credentials(self._current, self._fetch)

    def renew(self) -> None:
        """Use what is in the files now for the connections that come; keep what there was if that is wrong."""
        try:
            server_context(self._settings)
            if outdated := tuple(date_problems(self._settings, now_utc())):
                raise SettingsError(outdated)
        except SettingsError as error:
            logger.error("Reload on HUP refused: the previous certificate stays in force:\n%s", error)
            return
        self._current = self._read()
        self._is_new = True

    def _read(self) -> grpc.ServerCertificateConfiguration:
        pair = (Path(self._settings.tls_key).read_bytes(), Path(self._settings.tls_cert).read_bytes())
        return grpc.ssl_server_certificate_configuration([pair])

    def _fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """Called by gRPC for each connection, in a thread of its own; None where nothing has changed."""
        changed, self._is_new = self._is_new, False
        return self._current if changed else None
