"""Litestar: a plugin that opens the store, runs a worker and answers our errors."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from litestar import Litestar, Request, Response, get, post
from litestar.di import NamedDependency, Provide
from litestar.params import FromPath, FromQuery
from litestar.testing import TestClient

from tests.integrations.conftest import FAULTS, any_fault, check_answer, check_unavailable
from tests.support.workbench import ended
from treadle import JobNotFound, State, Tenant, Treadle
from treadle.integrations.litestar import JobView, TreadlePlugin
from treadle.testing import run_until_idle


def test_jobs_run_while_the_app_does_and_the_store_is_closed_with_it(jobs: Treadle) -> None:
    app = Litestar(plugins=[TreadlePlugin(jobs, worker={"grace": 1, "poll": 0.05})])
    with TestClient(app):
        assert ended(jobs, jobs.enqueue("add", {"a": 1, "b": 2}))[0].result == 3
    assert jobs.workers() == []


def test_without_a_worker_nothing_runs(jobs: Treadle) -> None:
    with TestClient(Litestar(plugins=[TreadlePlugin(jobs)])):
        assert jobs.enqueue("add", {"a": 1, "b": 2}).state is State.PENDING
        assert jobs.workers() == []


def test_own_lifespans_begin_before_the_worker_and_end_after_it(jobs: Treadle) -> None:
    seen = []

    @asynccontextmanager
    async def own(_: Litestar) -> AsyncIterator[None]:
        seen.append(len(jobs.workers()))
        yield
        seen.append(len(jobs.workers()))

    with TestClient(Litestar(lifespan=[own], plugins=[TreadlePlugin(jobs, worker={"poll": 0.05})])):
        ended(jobs, jobs.enqueue("add", {"a": 1, "b": 2}))
        assert len(jobs.workers()) == 1
    assert seen == [0, 0]


def test_a_tenant_is_a_dependency_and_a_job_a_model(jobs: Treadle) -> None:
    async def customer(request: Request[Any, Any, Any]) -> Tenant:
        return jobs.tenant(request.headers["X-Customer"])

    @post("/sums")
    async def put(tenant: NamedDependency[Tenant], a: FromQuery[int], b: FromQuery[int]) -> JobView:
        return JobView.of(await tenant.using(jobs.tasks["add"]).aenqueue(a, b))

    @get("/jobs/{job_id:str}")
    async def show(tenant: NamedDependency[Tenant], job_id: FromPath[str]) -> JobView:
        return JobView.of(await tenant.aget(job_id))

    app = Litestar([put, show], plugins=[TreadlePlugin(jobs)], dependencies={"tenant": Provide(customer)})
    with TestClient(app) as web:
        job = web.post("/sums?a=1&b=2", headers={"X-Customer": "acme"}).json()
        run_until_idle(jobs)
        shown = web.get(f"/jobs/{job['id']}", headers={"X-Customer": "acme"}).json()
        assert (shown["state"], shown["result"], shown["error"]) == ("succeeded", 3, None)
        assert web.get(f"/jobs/{job['id']}", headers={"X-Customer": "birch"}).status_code == 404
        assert web.get(f"/jobs/{job['id']}", headers={"X-Customer": " "}).json()["field"] == "tenant"
        assert "JobView" in web.get("/schema/openapi.json").text


@any_fault
def test_what_a_client_did_wrong_is_answered_with_the_field_and_the_way_out(jobs: Treadle, fault: str) -> None:
    @get("/", sync_to_thread=True)
    def act() -> None:
        FAULTS[fault][0](jobs)

    with TestClient(Litestar([act], plugins=[TreadlePlugin(jobs)])) as web:
        answer = web.get("/")
        check_answer(fault, answer.status_code, answer.json())


def test_the_programs_own_exception_handlers_win(jobs: Treadle) -> None:
    @get("/")
    async def act() -> None:
        await jobs.aget("nobody")

    def gone(_: Request[Any, Any, Any], __: JobNotFound) -> Response[str]:
        return Response("gone", status_code=410)

    app = Litestar([act], plugins=[TreadlePlugin(jobs)], exception_handlers={JobNotFound: gone})
    with TestClient(app) as web:
        assert web.get("/").status_code == 410


@pytest.mark.slow
def test_a_store_that_does_not_answer_is_a_503(away: str, tmp_path: Path) -> None:
    jobs = Treadle(away)

    @get("/")
    async def act() -> None:
        await jobs.acount()

    with TestClient(Litestar([act], plugins=[TreadlePlugin(jobs)])) as web:
        answer = web.get("/")
        check_unavailable(answer.status_code, answer.headers, answer.json())
