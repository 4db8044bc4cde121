"""Where an action on the operations page may come from. Who may act: `test_access`."""

from __future__ import annotations

import pytest

from webapp.errors import ApiError
from webapp.ops import origin_check
from webapp.request import HttpRequest


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_site_cannot_act(site: str) -> None:
    with pytest.raises(ApiError):
        origin_check.refuse_other_sites(HttpRequest({"HTTP_SEC_FETCH_SITE": site}))
    origin_check.refuse_other_sites(HttpRequest({"HTTP_SEC_FETCH_SITE": "same-origin"}))
    origin_check.refuse_other_sites(HttpRequest({}))
