"""Where an action on the operations page may come from. Who may act: `test_access`."""

from __future__ import annotations

import pytest

from config.settings import Settings
from webapp.call import Call
from webapp.errors import ApiError
from webapp.ops import gate


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_site_cannot_act(site: str) -> None:
    with pytest.raises(ApiError):
        gate.refuse_other_sites(Settings(), Call({"HTTP_SEC_FETCH_SITE": site}))
    gate.refuse_other_sites(Settings(), Call({"HTTP_SEC_FETCH_SITE": "same-origin"}))
    gate.refuse_other_sites(Settings(), Call({}))


@pytest.mark.parametrize("host", ["rebound.example", "rebound.example:8000", "10.0.0.1:80", "", "[::"])
def test_without_a_token_another_name_for_this_machine_cannot_act(host: str) -> None:
    call = Call({"HTTP_HOST": host, "HTTP_SEC_FETCH_SITE": "same-origin"})
    with pytest.raises(ApiError, match="service token"):
        gate.refuse_other_sites(Settings(), call)
    gate.refuse_other_sites(Settings(service_token="s3cret"), call)


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost", "[::1]:8000"])
def test_on_this_machine_it_can(host: str) -> None:
    gate.refuse_other_sites(Settings(), Call({"HTTP_HOST": host}))
