"""The description of the API: it has every endpoint, and every endpoint is as it says."""

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance
from starlette.testclient import TestClient

from tests.server.conftest import API, Client
from tests.server.endpoints import CHANGES, ENDPOINTS, PUBLIC, Endpoint, place_in
from treadle import Treadle
from treadle.server.api import Server

DESCRIPTION = f"{API}/openapi.json"
DESCRIBED = [one for one in ENDPOINTS if one.path != DESCRIPTION]


def described(server: Server) -> dict[str, Any]:
    return server.api.openapi()


def test_it_is_openapi_3_1_and_needs_no_token(nobody: Client, server: Server) -> None:
    description = nobody.get(f"/{DESCRIPTION}")
    assert description["openapi"].startswith("3.1")
    assert description == described(server)


def test_every_endpoint_is_described(server: Server) -> None:
    paths = described(server)["paths"]
    assert {(method.upper(), path) for path, methods in paths.items() for method in methods} == {
        (one.method, one.path) for one in DESCRIBED
    }


def test_every_operation_has_words_and_an_id_of_its_own(server: Server) -> None:
    operations = [one for methods in described(server)["paths"].values() for one in methods.values()]
    ids = [one["operationId"] for one in operations]
    assert len(set(ids)) == len(ids)
    assert all(one["description"].endswith(".") for one in operations)
    assert all("default" in one["responses"] for one in operations)
    assert all(one["tags"] for one in operations)


def test_it_says_where_a_token_is_asked_for(server: Server) -> None:
    description = described(server)
    schemes = description["components"]["securitySchemes"]
    assert {scheme["type"] for scheme in schemes.values()} == {"http", "apiKey"}
    for one in DESCRIBED:
        said = description["paths"][one.path][one.method.lower()].get("security", [])
        assert {name for way in said for name in way} == (set() if one.scope == PUBLIC else set(schemes)), one


def test_changes_say_what_a_body_may_hold_and_nothing_else(server: Server) -> None:
    description = described(server)
    for one in CHANGES:
        operation = description["paths"][one.path][one.method.lower()]
        if one.body is None:
            assert "requestBody" not in operation
            continue
        [name] = [part["schema"]["$ref"].rpartition("/")[2] for part in operation["requestBody"]["content"].values()]
        assert description["components"]["schemas"][name]["additionalProperties"] is False, one


@pytest.fixture(scope="module")
def schema(shared: TestClient) -> Any:
    found = schemathesis.openapi.from_asgi(DESCRIPTION, shared.app, headers={"Host": "localhost"})
    found.config.base_url = "http://localhost"
    refused = found.config.checks.negative_data_rejection.expected_statuses
    found.config.checks.negative_data_rejection.expected_statuses = [*refused, "413", "414"]
    return found


@pytest.mark.parametrize("endpoint", [one for one in DESCRIBED if one.path != "/readyz"], ids=str)
def test_every_endpoint_is_as_it_is_described(
    app: Treadle, admin: Client, server: Server, schema: Any, endpoint: Endpoint, secrets: list[str]
) -> None:
    """Requests that fit the description and such that do not, with all that Schemathesis knows to check.

    But one: what fits may still be refused, for a task that is not there or a time that is past.
    """
    place_in(app)
    server.stop()  # a stream ends at once
    operation = schema[endpoint.path][endpoint.method]
    modes = [operation.as_strategy(generation_mode=mode) for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)]
    headers = {"Authorization": f"Bearer {secrets[0]}", "Host": "localhost"}

    @settings(
        max_examples=6, deadline=None, database=None, derandomize=True, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=modes[0] | modes[1])
    def ask(case: Any) -> None:
        case.call_and_validate(headers=headers, excluded_checks=[positive_data_acceptance])

    ask()
