"""Requests that are wrong in one place: refused, with that place named."""

import pytest
from starlette.testclient import TestClient

from tests.server.bad_requests import refused
from tests.server.endpoints import place_in
from tests.server.raw import Raw
from tests.support.sizes import size
from treadle import Treadle
from treadle.server.api import Server

NUMBER = size(300, long=10_000)


@pytest.fixture(scope="module")
def shared(with_admin: TestClient) -> TestClient:
    return with_admin


def test_bad_requests_are_refused_by_the_field_that_is_wrong(app: Treadle, server: Server, secrets: list[str]) -> None:
    server.stop()  # a stream ends at once
    secrets.append(app.tokens.create("bad", scopes=["admin"]).secret)
    with Raw(server) as raw:
        wrong, statuses = refused(raw, server.api.openapi(), place_in(app), secrets[-1], NUMBER)
    assert [(bad.wrong, answer.status, answer.body) for bad, answer in wrong] == []
    assert statuses.total() == NUMBER
    assert statuses[422] > NUMBER * 2 // 3
