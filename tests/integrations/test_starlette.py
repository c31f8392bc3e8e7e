"""Starlette, and what every ASGI framework gets: a worker in the lifespan, and our errors as answers."""

import asyncio
import logging
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from tests.integrations.conftest import FAULTS, any_fault, check_answer, check_unavailable
from tests.integrations.server import Server
from tests.support.proxy import Proxy
from tests.support.workbench import ended, until
from treadle import SchemaError, State, Treadle
from treadle.integrations import asgi
from treadle.integrations.starlette import add_error_handlers, lifespan

SLOW_APP = """
import asyncio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from treadle import Treadle
from treadle.integrations.starlette import lifespan

jobs = Treadle("sqlite:///jobs.db", poll=0.05)

@jobs.task
async def sleep(seconds: float) -> str:
    print("asleep", flush=True)
    await asyncio.sleep(seconds)
    return "rested"

async def put(request: Request) -> PlainTextResponse:
    return PlainTextResponse((await sleep.aenqueue(float(request.path_params["seconds"]))).id)

web = Starlette(
    routes=[Route("/sleep/{seconds}", put)], lifespan=lifespan(jobs, worker={"concurrency": 2, "grace": "GRACE"})
)
"""


def site(jobs: Treadle, act: Callable[[Treadle], object] = lambda jobs: jobs.count(), **options: Any) -> Starlette:
    """A web app whose every request does this."""

    def do(_: Request) -> Response:
        act(jobs)
        return Response()

    app = Starlette(routes=[Route("/", do)], **options)
    add_error_handlers(app)
    return app


def test_jobs_run_while_the_app_does_and_the_store_is_closed_with_it(jobs: Treadle) -> None:
    with TestClient(site(jobs, lifespan=lifespan(jobs, worker={"grace": 1, "poll": 0.05}))):
        job = jobs.enqueue("add", {"a": 1, "b": 2})
        assert ended(jobs, job)[0].result == 3
    assert jobs.workers() == []
    later = jobs.enqueue("add", {"a": 1, "b": 2})
    assert jobs.get(later.id).state is State.PENDING


def test_an_app_can_be_started_a_second_time(jobs: Treadle) -> None:
    app = site(jobs, lifespan=lifespan(jobs, worker=True))
    for _ in range(2):
        with TestClient(app):
            assert ended(jobs, jobs.enqueue("add", {"a": 1, "b": 2}))[0].result == 3


def test_without_a_worker_nothing_runs(jobs: Treadle) -> None:
    with TestClient(site(jobs, lifespan=lifespan(jobs))):
        assert jobs.enqueue("add", {"a": 1, "b": 2}).state is State.PENDING
        assert jobs.workers() == []


def test_handlers_can_use_what_the_own_lifespan_opens_until_the_worker_has_stopped(jobs: Treadle) -> None:
    seen = []
    resource: dict[str, str] = {}

    @jobs.task
    async def work() -> None:
        seen.append(f"begins with {resource}")
        await asyncio.sleep(0.5)  # meanwhile the app stops
        seen.append(f"ends with {resource}")

    @asynccontextmanager
    async def own(_: Starlette) -> AsyncIterator[dict[str, str]]:
        resource["client"] = "open"
        yield {"client": "from the state"}
        resource.clear()

    async def client(request: Request) -> JSONResponse:
        return JSONResponse(request.state.client)

    app = Starlette(routes=[Route("/", client)], lifespan=lifespan(jobs, own, worker={"grace": 5, "poll": 0.05}))
    with TestClient(app) as web:
        assert web.get("/").json() == "from the state"
        work.enqueue()
        until(lambda: seen, "the start of the job")
    assert seen == ["begins with {'client': 'open'}", "ends with {'client': 'open'}"]
    assert resource == {}


def test_an_own_lifespan_that_fails_ends_the_start_without_a_worker(jobs: Treadle) -> None:
    @asynccontextmanager
    async def own(_: Starlette) -> AsyncIterator[None]:
        raise RuntimeError("no cache")
        yield

    with (
        pytest.raises(RuntimeError, match="no cache"),
        TestClient(site(jobs, lifespan=lifespan(jobs, own, worker=True))),
    ):
        pass
    assert jobs.workers() == []


@any_fault
def test_what_a_client_did_wrong_is_answered_with_the_field_and_the_way_out(jobs: Treadle, fault: str) -> None:
    answer = TestClient(site(jobs, FAULTS[fault][0])).get("/")
    check_answer(fault, answer.status_code, answer.json())


def test_a_fault_of_the_program_stays_one(jobs: Treadle) -> None:
    def act(jobs: Treadle) -> None:
        jobs.tasks["add"].using(tx=object()).enqueue(1, 2)

    assert TestClient(site(jobs, act), raise_server_exceptions=False).get("/").status_code == 500


@pytest.mark.slow
def test_a_server_that_is_away_holds_up_the_start_for_two_seconds_and_requests_hear_503(
    away: str, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = Treadle(away)
    begun = time.monotonic()
    with TestClient(site(jobs, lifespan=lifespan(jobs, worker=True))) as web:
        assert time.monotonic() - begun < asgi.START_TIMEOUT + 2
        assert "the job store is not there yet: no answer within 2 s" in caplog.text
        answer = web.get("/")
        check_unavailable(answer.status_code, answer.headers, answer.json())
    assert "answered with 503: PostgreSQL at 127.0.0.1" in caplog.text
    assert "hunter2" not in caplog.text


def test_a_server_that_comes_late_is_used_when_it_is_there(
    postgres_database: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    parts = urlsplit(postgres_database)
    with Proxy(parts.hostname or "", parts.port or 0) as proxy:
        jobs = Treadle(proxy.url(postgres_database), auto_migrate=True, poll=0.05)
        task = jobs.task(name="hello")(lambda: "hello")
        proxy.refuse()
        with TestClient(site(jobs, lifespan=lifespan(jobs, worker={"grace": 1}))):
            assert "the job store is not there yet" in caplog.text
            proxy.refuse(False)
            assert ended(jobs, task.enqueue())[0].result == "hello"


def test_a_schema_that_does_not_fit_is_said_at_the_start(postgres_database: str) -> None:
    jobs = Treadle(postgres_database)  # without its tables
    with (
        pytest.raises(SchemaError, match="treadle migrate"),
        TestClient(site(jobs, lifespan=lifespan(jobs, worker=True))),
    ):
        pass


@pytest.mark.slow
def test_sigterm_lets_a_running_job_end_within_the_grace_time(tmp_path: Path) -> None:
    with Server.uvicorn(tmp_path, SLOW_APP.replace("GRACE", "30s")) as server:
        job = server.get("/sleep/1.5")
        server.says("asleep")
        assert "Application shutdown complete" in server.stop(signal.SIGTERM)
    with Treadle(f"sqlite:///{tmp_path}/jobs.db") as jobs:
        assert (jobs.get(job).state, jobs.get(job).result) == (State.SUCCEEDED, "rested")


@pytest.mark.slow
def test_sigterm_releases_what_runs_longer_than_the_grace_time_and_spends_no_attempt(tmp_path: Path) -> None:
    with Server.uvicorn(tmp_path, SLOW_APP.replace("GRACE", "0.5s")) as server:
        job = server.get("/sleep/600")
        server.says("asleep")
        begun = time.monotonic()
        assert "Application shutdown complete" in server.stop(signal.SIGTERM)
        assert time.monotonic() - begun < 20
    with Treadle(f"sqlite:///{tmp_path}/jobs.db") as jobs:
        left = jobs.get(job)
        assert (left.state, left.failures, jobs.workers()) == (State.PENDING, 0, [])
