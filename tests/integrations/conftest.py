"""What the tests of the frameworks share: an app, the errors that a request may meet, a server that is away."""

import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.django_projects import database, django_kind, project, templates  # noqa: F401 - fixtures
from tests.support import provision
from treadle import Treadle, Unique

Act = Callable[[Treadle], object]


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Treadle]:
    with closing(Treadle(f"sqlite:///{tmp_path}/jobs.db", poll=0.05)) as app:
        app.register("add", add)
        yield app


def add(a: int, b: int) -> int:
    return a + b


def enqueue_twice(jobs: Treadle) -> None:
    once = jobs.tasks["add"].using(key="sum", unique=Unique("active", on_conflict="raise"))
    once.enqueue(1, 2)
    once.enqueue(1, 2)


def cancel_twice(jobs: Treadle) -> None:
    job = jobs.enqueue("add", {"a": 1, "b": 2})
    jobs.cancel(job.id)
    jobs.cancel(job.id)


FAULTS: dict[str, tuple[Act, int, dict[str, Any]]] = {
    "payload": (
        lambda jobs: jobs.enqueue("add", {"a": "one", "b": 2}), 422, {"error": "InvalidPayload", "field": "payload"},
    ),
    "queue": (
        lambda jobs: jobs.enqueue("add", {"a": 1, "b": 2}, queue=""), 422, {"error": "InvalidJob", "field": "queue"},
    ),
    "delay": (
        lambda jobs: jobs.enqueue("add", {"a": 1, "b": 2}, run_after="soon"),
        422,
        {"error": "InvalidTiming", "field": "run_after"},
    ),
    "zone": (
        lambda jobs: jobs.schedules.create("s", "add", {"a": 1, "b": 2}, cron="0 9 * * *", tz="Mars"),
        422,
        {"error": "InvalidTiming", "field": "timezone"},
    ),
    "cron": (
        lambda jobs: jobs.schedules.create("s", "add", {"a": 1, "b": 2}, cron="often"),
        422,
        {"error": "InvalidTiming", "field": "cron"},
    ),
    "interval": (
        lambda jobs: jobs.schedules.create("s", "add", {"a": 1, "b": 2}, every="0.1s"),
        422,
        {"error": "InvalidTiming", "field": "every"},
    ),
    "task": (lambda jobs: jobs.enqueue("ad", {}), 422, {"error": "UnknownTask", "field": "task"}),
    "tenant": (lambda jobs: jobs.tenant(""), 422, {"error": "InvalidJob", "field": "tenant"}),
    "job": (lambda jobs: jobs.get("nobody"), 404, {"error": "JobNotFound"}),
    "schedule": (lambda jobs: jobs.schedules.get("never"), 404, {"error": "ScheduleNotFound"}),
    "key": (enqueue_twice, 409, {"error": "KeyTaken"}),
    "time": (
        lambda jobs: jobs.wait_for(jobs.enqueue("add", {"a": 1, "b": 2}), 0.01), 504, {"error": "WaitTimeout"},
    ),
    "state": (cancel_twice, 409, {"error": "NotPossible"}),
}  # fmt: skip
"""What a client can do wrong, by name: the act, the status of the answer, and what stands in its body."""

any_fault = pytest.mark.parametrize("fault", FAULTS)


def check_answer(fault: str, status: int, body: dict[str, Any]) -> None:
    _, expected, part = FAULTS[fault]
    assert (status, {name: body.get(name) for name in part}) == (expected, part), body
    assert set(body) <= {"error", "detail", "field"}
    assert body["detail"]
    if status == 422 and body["error"] != "UnknownTask":
        assert body["detail"].startswith(f"{body['field']}: ")


@pytest.fixture
def away() -> Iterator[str]:
    """The URL of a PostgreSQL that accepts connections and never says a word; its password must not be seen."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(100)
        yield f"postgresql://shop:hunter2@127.0.0.1:{silent.getsockname()[1]}/shop"


def check_unavailable(status: int, headers: Any, body: dict[str, Any]) -> None:
    """The client is told to try again, and nothing about the store."""
    assert (status, headers["Retry-After"]) == (503, "1")
    assert body == {"error": "EngineUnavailable", "detail": "the job store does not answer; try again"}


@pytest.fixture
def postgres_database() -> Iterator[str]:
    """An empty database."""
    url = provision.fresh_database(provision.shared_postgres())
    yield url
    provision.drop_database(url)
