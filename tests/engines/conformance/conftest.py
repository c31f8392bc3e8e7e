"""The contract also holds on the oldest server we promise, wherever its binaries are."""

import pytest

from tests.support import stores

THERE = tuple(kind for kind in stores.SECOND if kind not in stores.missing())


@pytest.fixture(params=tuple(dict.fromkeys((*stores.KINDS, *THERE, *stores.DYNAMO))))
def engine_kind(request: pytest.FixtureRequest) -> str:
    return request.param
