"""FastAPI: whose job it is comes from the request, and a job is a response model."""

from typing import Annotated

import pytest
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.testclient import TestClient

from tests.integrations.conftest import FAULTS, any_fault, check_answer
from treadle import ConfigError, GiveUp, Job, Retry, Tenant, Treadle
from treadle.integrations.fastapi import JobView, add_error_handlers, lifespan, tenant_of
from treadle.testing import run_until_idle

ACME, BIRCH = {"X-Customer": "acme"}, {"X-Customer": "birch"}


class Site:
    """A web app in which each customer adds numbers."""

    def __init__(self, jobs: Treadle, source: object = "X-Customer") -> None:
        customer = Annotated[Tenant, Depends(tenant_of(jobs, source))]  # type: ignore[arg-type]
        self.api = FastAPI(lifespan=lifespan(jobs))
        add_error_handlers(self.api)

        @self.api.post("/sums", status_code=202, response_model=JobView)
        async def put(a: int, b: int, tenant: customer) -> Job:  # type: ignore[valid-type]
            return await tenant.using(jobs.tasks["add"]).aenqueue(a, b)

        @self.api.get("/jobs/{job_id}")
        async def show(job_id: str, tenant: customer) -> JobView:  # type: ignore[valid-type]
            return JobView.of(await tenant.aget(job_id))


@pytest.fixture
def web(jobs: Treadle) -> TestClient:
    return TestClient(Site(jobs).api)


def test_a_customer_enqueues_and_reads_the_result(jobs: Treadle, web: TestClient) -> None:
    job = web.post("/sums?a=1&b=2", headers=ACME).json()
    assert (job["state"], job["result"], jobs.get(job["id"]).tenant) == ("pending", None, "acme")
    run_until_idle(jobs)
    shown = web.get(f"/jobs/{job['id']}", headers=ACME).json()
    assert (shown["state"], shown["result"], shown["error"]) == ("succeeded", 3, None)
    assert shown["finished_at"].endswith("Z")


def test_one_customer_does_not_see_anothers_job(web: TestClient) -> None:
    job = web.post("/sums?a=1&b=2", headers=ACME).json()
    answer = web.get(f"/jobs/{job['id']}", headers=BIRCH)
    assert (answer.status_code, answer.json()["error"]) == (404, "JobNotFound")


def test_a_request_without_the_header_or_with_a_bad_name_is_refused(web: TestClient) -> None:
    missing, bad = web.post("/sums?a=1&b=2"), web.post("/sums?a=1&b=2", headers={"X-Customer": " "})
    assert (missing.status_code, missing.json()["detail"][0]["loc"]) == (422, ["header", "X-Customer"])
    assert (bad.status_code, bad.json()["field"]) == (422, "tenant")


def test_the_tenant_may_come_from_the_user_of_the_request(jobs: Treadle) -> None:
    async def user(request: Request) -> str:
        if request.headers.get("Authorization") != "Bearer ada":
            raise HTTPException(401)
        return "ada"

    async def customer(user: Annotated[str, Depends(user)]) -> str:
        return {"ada": "acme"}[user]

    web = TestClient(Site(jobs, customer).api)
    assert web.post("/sums?a=1&b=2").status_code == 401
    job = web.post("/sums?a=1&b=2", headers={"Authorization": "Bearer ada"}).json()
    assert jobs.get(job["id"]).tenant == "acme"


def test_the_error_of_a_job_is_an_object_without_a_traceback(jobs: Treadle, web: TestClient) -> None:
    @jobs.task(retry=Retry(max_attempts=1))
    def refuse() -> None:
        raise GiveUp("refused: 422")

    job = jobs.tenant("acme").using(refuse).enqueue()
    run_until_idle(jobs)
    shown = web.get(f"/jobs/{job.id}", headers=ACME).json()
    assert shown["error"].keys() == {"type", "message", "attempt", "at"}
    assert (shown["state"], shown["error"]["message"], shown["error"]["attempt"]) == ("failed", "refused: 422", 1)
    assert jobs.view(jobs.get(job.id))["error"]["traceback"] is not None


def test_nothing_that_is_not_for_clients_is_shown(jobs: Treadle, web: TestClient) -> None:
    shown = web.post("/sums?a=1&b=2", headers=ACME).json()
    assert shown.keys() & {"payload", "payload_json", "lease_token", "worker", "key"} == set()


def test_a_view_can_show_more_fields_of_a_job(jobs: Treadle) -> None:
    class WithPayload(JobView):
        payload: dict[str, int]
        queue: str

    job = jobs.enqueue("add", {"a": 1, "b": 2})
    assert WithPayload.of(job).model_dump(include={"payload", "queue"}) == {
        "payload": {"a": 1, "b": 2},
        "queue": "default",
    }


def test_the_documentation_of_the_api_knows_what_a_job_is(web: TestClient) -> None:
    schemas = web.get("/openapi.json").json()["components"]["schemas"]
    assert schemas["JobView"]["properties"]["error"]["anyOf"][0] == {"$ref": "#/components/schemas/ErrorView"}
    assert schemas["State"]["enum"] == ["pending", "running", "succeeded", "failed", "cancelled"]


@any_fault
def test_what_a_client_did_wrong_is_answered_with_the_field_and_the_way_out(jobs: Treadle, fault: str) -> None:
    api = FastAPI()
    add_error_handlers(api)
    api.get("/")(lambda: FAULTS[fault][0](jobs))
    answer = TestClient(api).get("/")
    check_answer(fault, answer.status_code, answer.json())


def test_a_wrong_call_of_tenant_of_is_said_at_once(jobs: Treadle) -> None:
    for source in (None, 5, ""):
        with pytest.raises(ConfigError, match=r"tenant_of: .* must be a dependency or the name of a header"):
            tenant_of(jobs, source)  # type: ignore[arg-type]
