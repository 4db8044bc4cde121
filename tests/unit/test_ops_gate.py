"""Where an action on the operations page may come from. Who may act: `test_access`."""

from __future__ import annotations

import pytest

from webapp.call import Call
from webapp.errors import ApiError
from webapp.ops import gate


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_site_cannot_act(site: str) -> None:
    with pytest.raises(ApiError):
        gate.refuse_other_sites(Call({"HTTP_SEC_FETCH_SITE": site}))
    gate.refuse_other_sites(Call({"HTTP_SEC_FETCH_SITE": "same-origin"}))
    gate.refuse_other_sites(Call({}))
