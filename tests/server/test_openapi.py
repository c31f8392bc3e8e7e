"""The description of the API: it has every endpoint, and every endpoint is as it says."""

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance
from starlette.testclient import TestClient

from tests.server.conftest import API, Client
from tests.server.endpoints import ADMIN, ADMIN_ENDPOINTS, ENDPOINTS, PUBLIC, SAFE, V1, Endpoint
from tests.support.sizes import size
from treadle import Treadle
from treadle.engines.values import OVERWRITE
from treadle.model import new_id
from treadle.model.records import WorkerInfo
from treadle.server.api import Server
from treadle.testing import run_until_idle

DESCRIPTION = f"{API}/openapi.json"
DESCRIBED = [one for one in (*ENDPOINTS, *ADMIN_ENDPOINTS) if one.path != DESCRIPTION]
EXAMPLES = size(5, long=100)
KNOWN = {
    "state": "pending", "task": "greet", "type": "greet", "queue": "default", "tenant": "default", "since": "2h",
    "before": "1h", "until": "1h", "span": "1h", "day": "2026-01-01", "after": "2026-01-01T00:00:00Z", "cron": "@daily",
    "tz": "Europe/Berlin",
}  # fmt: skip
"""What a query may ask for that is there."""


@pytest.fixture(scope="module")
def shared(with_admin: TestClient) -> TestClient:
    return with_admin


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
    for one in DESCRIBED:
        if one.method in SAFE:
            continue
        operation = description["paths"][one.path][one.method.lower()]
        if one.body is None:
            assert "requestBody" not in operation
            continue
        [name] = [part["schema"]["$ref"].rpartition("/")[2] for part in operation["requestBody"]["content"].values()]
        assert description["components"]["schemas"][name]["additionalProperties"] is False, one


# -------------------------------------------------------------------------------------- as it is described


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

    But one: what fits may still be refused, for a task that is not there or a time that is past. So first comes a
    request that succeeds, and half of those that fit are about what is there.
    """
    server.stop()  # a stream ends at once
    operation = schema[endpoint.path][endpoint.method]
    headers = {"Authorization": f"Bearer {secrets[0]}", "Host": "localhost"}
    body = {"token": secrets[0]} if endpoint.path.endswith("/session") and endpoint.body else endpoint.body
    asked = {} if body is None else {"body": body, "media_type": "application/json"}
    first = operation.Case(path_parameters=ready(app, endpoint), query=endpoint.query, **asked)
    assert first.call_and_validate(headers=headers).status_code < 300

    def made_real(case: Any) -> Any:
        case.path_parameters = ready(app, endpoint)
        case.query = {name: KNOWN.get(name, value) for name, value in (case.query or {}).items() if name != "cursor"}
        if isinstance(case.body, dict):
            case.body = {**case.body, **(body or {})}
        return case

    fits = operation.as_strategy(generation_mode=GenerationMode.POSITIVE)
    does_not = operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)

    @settings(
        max_examples=EXAMPLES, deadline=None, database=None, derandomize=True, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=fits | fits.map(made_real) | does_not | does_not)
    def ask(case: Any) -> None:
        case.call_and_validate(headers=headers, excluded_checks=[positive_data_acceptance])

    ask()


def ready(app: Treadle, endpoint: Endpoint) -> dict[str, str]:
    """Put into the store what this request needs to succeed; the ids and names of its address."""
    name = f"of-{new_id()}"
    found = {"name": name}
    match endpoint.path.removeprefix(V1).removeprefix(ADMIN).split("/")[1:]:
        case ["jobs", "{job_id}", *act]:
            found["job_id"] = job_for(app, act)
        case ["schedules", _, *_]:
            found["schedule_id"] = app.schedules.create(name, "greet", {"name": "Ada"}, every="1h").id
        case ["tokens", _, *_]:
            app.tokens.create(name, scopes=["read"])
        case ["workers", _, *_]:
            now = app.engine.now()
            app.engine.save(WorkerInfo(name, "box", 1, [], None, {}, 1, 0, False, now, now, 60.0), before=OVERWRITE)
        case ["pauses", "resume"]:
            app.pause(queue=endpoint.body["queue"])
    return {name: value for name, value in found.items() if f"{{{name}}}" in endpoint.path}


def job_for(app: Treadle, act: list[str]) -> str:
    """A job that has failed, if it is to be retried, else one that is due later."""
    if act != ["retry"]:
        return app.tasks["greet"].using(run_after="1h").enqueue("Ada").id
    job = app.enqueue("give_up", {"why": "no"})
    run_until_idle(app)
    return job.id
