"""Nothing secret is told: not the password of the store, not a token, not an error's own words, by no answer or log."""

import json
import logging
from collections.abc import Callable

import pytest

from tests.server.endpoints import ENDPOINTS, Place, place_in
from tests.server.raw import Raw
from treadle import Context, Retry, Treadle
from treadle.engines.values import Claim
from treadle.server import Principal
from treadle.server.api import Server
from treadle.testing import run_until_idle

PASSWORD = "hunter2-canary"
PLACE = Place("0199e0c5-6f3b-7d41-9c1e-2b7f5f0a8c11", "nightly")


def everybody(request: object) -> Principal:
    return Principal.of("ada", ["admin"])


def answers(server: Server, place: Place = PLACE) -> list[tuple[str, int, bytes]]:
    """What every endpoint answers to its example."""
    server.stop()
    found = []
    with Raw(server) as raw:
        for endpoint in ENDPOINTS:
            body = b"" if endpoint.body is None else json.dumps(endpoint.body).encode()
            headers = [(b"content-type", b"application/json")] if body else []
            answer = raw.ask(endpoint.method, endpoint.url(place), headers, body)
            found.append((str(endpoint), answer.status, answer.body + repr(answer.headers).encode()))
    return found


def log_of(caplog: pytest.LogCaptureFixture) -> str:
    formatter = logging.Formatter("%(message)s")
    return "\n".join(formatter.format(record) for record in caplog.records)


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://shop:{PASSWORD}@127.0.0.1:1/shop?connect_timeout=1",
        f"postgresql://shop@127.0.0.1:1/shop?password={PASSWORD}",
        f"dynamodb://jobs?endpoint=http://shop:{PASSWORD}@127.0.0.1:1&region=eu-central-1",
    ],
    ids=["user", "query", "endpoint"],
)
def test_a_store_that_is_away_is_a_503_without_its_address(
    server: Server, url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treadle.engines.postgres.connection.Connections.retry_for", 0.0)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    app = Treadle(url)
    server.serve_app(app, everybody)
    for endpoint, status, text in answers(server):
        assert PASSWORD.encode() not in text, endpoint
        assert b"127.0.0.1" not in text, endpoint
        if status == 503 and b"stopping" not in text:
            assert b"does not answer" in text, endpoint
    assert PASSWORD not in log_of(caplog)
    app.close()
    caplog.clear()


@pytest.mark.parametrize(
    "url",
    [
        f"nosuch://shop:{PASSWORD}@db/shop", f"postgresql://shop:{PASSWORD}@db:notaport/shop",
        f"postgresql://shop:{PASSWORD}@db/shop?nosuch=1", f"sqlite:///x.db?secret={PASSWORD}",
    ],
    ids=["scheme", "port", "option", "sqlite"],
)  # fmt: skip
def test_settings_that_cannot_be_used_are_not_told_to_callers(
    server: Server, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    server.serve_app(Treadle(url), everybody)
    for endpoint, status, text in answers(server):
        assert PASSWORD.encode() not in text, endpoint
        if "/jobs" in endpoint:
            assert status == 500, (endpoint, text)
    assert PASSWORD not in log_of(caplog)
    caplog.clear()


@pytest.mark.parametrize("engine_kind", ["postgres"])
def test_a_store_without_tables_is_a_503_with_the_way_out(server: Server, store_url: str) -> None:
    app = Treadle(store_url.partition("?")[0] + "?schema=nowhere")
    server.serve_app(app, everybody)
    with Raw(server) as raw:
        for target in ("/readyz", "/api/v1/jobs", "/api/v1/schedules", "/api/v1/status"):
            answer = raw.ask("GET", target)
            assert (answer.status, "treadle migrate" in answer.json["detail"]) == (503, True), answer
        assert raw.ask("GET", "/healthz").status == 200
    app.close()


def test_no_answer_tells_a_token_or_its_hash(app: Treadle, server: Server) -> None:
    made = [app.tokens.create(label, scopes=["admin"]) for label in ("one", "two")]
    secret = app.tokens.create("session", scopes=["admin"]).secret
    server.serve_app(app, everybody)
    for endpoint, _, text in answers(server, place_in(app)):
        for one in made:
            assert one.secret.encode() not in text, endpoint
            assert one.token.hash.encode() not in text, endpoint
        assert secret.encode() not in text, endpoint


def test_a_bad_token_is_not_repeated(app: Treadle, server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with Raw(server) as raw:
        for header in (f"Bearer {PASSWORD}", f"Basic {PASSWORD}", PASSWORD):
            answer = raw.ask("GET", "/api/v1/jobs", [(b"authorization", header.encode())])
            assert answer.status == 401
            assert PASSWORD.encode() not in answer.body
        body = f'{{"token": "{PASSWORD}"}}'.encode()
        headers = [(b"content-type", b"application/json")]
        assert PASSWORD.encode() not in raw.ask("POST", "/api/v1/session", headers, body).body
        answer = raw.ask("POST", "/api/v1/session", headers, f'{{"token": ["{PASSWORD}"]}}'.encode())
        assert (answer.status, PASSWORD.encode() in answer.body) == (422, False)
    assert PASSWORD not in log_of(caplog)


def test_what_was_stored_before_a_field_became_secret_is_shown_without_it(
    make_app: Callable[..., Treadle], server: Server
) -> None:
    def log_in(ctx: Context, user: str, password: str) -> None:
        raise ValueError(f"no login with {password}")

    before, after = make_app(), make_app()
    retry = Retry(max_attempts=2, base=0, jitter=0)
    job = before.register("log_in", log_in, retry=retry).enqueue("ada", PASSWORD)
    run_until_idle(before)
    assert PASSWORD in str(before.events(job.id))
    after.register("log_in", log_in, retry=retry, secret=["password"])
    server.serve_app(after, everybody)
    server.stop()
    with Raw(server) as raw:
        for target in (f"/api/v1/jobs/{job.id}", "/api/v1/jobs", "/api/v1/failures"):
            body = raw.ask("GET", target, [], b"").body.decode()
            assert "no login with ***" in body, target
            assert PASSWORD not in body, target
    followed, _ = after.follow().latest(10)
    assert PASSWORD not in str(followed)
    assert "***" in str(followed)


def test_the_lease_token_of_a_job_is_told_to_nobody(app: Treadle, server: Server) -> None:
    job = app.enqueue("greet", {"name": "Ada"})
    app.engine.turn([], Claim("canary-token", "w1", 1, 60.0))
    assert app.get(job.id).lease_token == "canary-token"
    server.serve_app(app, everybody)
    with Raw(server) as raw:
        for target in ("/api/v1/jobs", f"/api/v1/jobs/{job.id}", f"/api/v1/jobs/{job.id}/why"):
            answer = raw.ask("GET", target)
            assert answer.status == 200
            assert b"canary-token" not in answer.body
