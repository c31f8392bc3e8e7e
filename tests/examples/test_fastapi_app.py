"""examples/fastapi_app: real requests to uvicorn, and what they leave in PostgreSQL when they fail."""

import json
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from http.client import HTTPConnection
from urllib.parse import urlsplit

import psycopg
import pytest

from tests.examples.conftest import Example
from tests.support.workbench import until
from treadle import Treadle

API = "uvicorn shop:api"
API_WITH_WORKER = "EMBEDDED_WORKER=1 uvicorn shop:api"
WORKER = "treadle worker --app shop:jobs"
GOOD_ORDER = (
    """curl localhost:8000/orders --header 'X-Shop: acme' --json '{"address": "ada@example.org", "cents": 1999}'"""
)
BAD_ORDER = (
    """curl localhost:8000/orders --header 'X-Shop: acme' --json '{"address": "bob@example.org", "cents": 250000}'"""
)
JOBS = "treadle jobs list --app shop:jobs"

FAILING_COMMIT = """
    create function refuse() returns trigger language plpgsql as $$ begin raise exception 'not today'; end $$;
    create constraint trigger refuse after insert on orders deferrable initially deferred
        for each row execute function refuse();
"""


@pytest.fixture
def shop(example: Callable[[str], Example], database: str) -> Example:
    opened = example("fastapi_app")
    opened.environment["DATABASE_URL"] = database.replace("postgresql:", "postgresql+asyncpg:", 1)
    return opened


@pytest.fixture
def app(database: str) -> Iterator[Treadle]:
    """The store of the example, as another process sees it."""
    with closing(Treadle(database, auto_migrate=True)) as app:
        yield app


class Web:
    """The app behind uvicorn, on a free port."""

    def __init__(self, shop: Example, command: str) -> None:
        self._shop = shop
        self.process = shop.start(command, "--port", "0")
        self._port = int(self.process.says(r"running on http://127.0.0.1:(\d+)"))

    def curl(self, command: str) -> tuple[int, str]:
        """Do as `curl URL --header SHOP --json DATA` of the README would; status and body."""
        _, url, _, header, _, data = self._shop.words(command)
        return self._ask("POST", urlsplit(f"//{url}").path, data, shop=header.removeprefix("X-Shop: "))

    def job(self, id: str) -> str:
        """The job as the app shows it, once it has ended."""

        def look() -> str:
            status, body = self._ask("GET", f"/jobs/{id}?wait=10")
            return body if status == 200 else ""  # 504: the machine is busy

        return until(look, f"the end of job {id}")

    def status(self, path: str, shop: str = "acme") -> int:
        return self._ask("GET", path, shop=shop)[0]

    def _ask(self, method: str, path: str, data: str | None = None, shop: str = "acme") -> tuple[int, str]:
        with closing(HTTPConnection("127.0.0.1", self._port, timeout=60)) as connection:
            kind = {"Content-Type": "application/json"} if data else {}
            connection.request(method, path, data, {"X-Shop": shop, **kind})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()


def orders(database: str) -> list[tuple[object, ...]]:
    with psycopg.connect(database) as connection:
        return connection.execute("select shop, address, cents from orders").fetchall()


def alike(printed: str) -> list[str]:
    """The lines without what differs from run to run: ids, ages, and the width of columns."""
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID", printed)
    return [re.sub(" +", " ", re.sub(r"\d\S* ago|[\d.]+m?s\b", "AGE", line)).strip() for line in text.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("commands", [[API, WORKER], [API_WITH_WORKER]], ids=["a worker beside it", "a worker inside"])
def test_the_order_is_there_with_its_receipt_and_the_refused_one_left_nothing(
    shop: Example, database: str, commands: list[str]
) -> None:
    answers, ended = shop.outputs
    web = Web(shop, commands[0])
    for worker in commands[1:]:
        shop.start(worker)
    (accepted, good), (refused, bad) = web.curl(GOOD_ORDER), web.curl(BAD_ORDER)
    assert (accepted, refused) == (201, 402)
    job = json.loads(good)["job"]
    assert web.job(job) == ended.strip()
    assert alike(f"{good}\n{bad}\n{shop.run(JOBS)}") == alike(answers)
    assert orders(database) == [("acme", "ada@example.org", 1999)]
    assert (web.status("/jobs/nobody"), web.status(f"/jobs/{job}", shop="birch")) == (404, 404)


@pytest.mark.slow
def test_an_accepted_order_gets_its_receipt_although_the_web_process_was_killed(shop: Example, app: Treadle) -> None:
    web = Web(shop, API)
    _, body = web.curl(GOOD_ORDER)
    web.process.end(signal.SIGKILL)
    job = app.get(json.loads(body)["job"])
    assert job.state == "pending"
    shop.start(WORKER)
    until(lambda: app.get(job.id).state == "succeeded", lambda: f"the receipt: {app.get(job.id)}")


@pytest.mark.slow
def test_a_commit_that_fails_is_no_201_and_leaves_no_job(shop: Example, database: str, app: Treadle) -> None:
    web = Web(shop, API)
    assert web.curl(GOOD_ORDER)[0] == 201
    with psycopg.connect(database) as connection:
        connection.execute(FAILING_COMMIT)
    assert web.curl(GOOD_ORDER)[0] == 500
    assert (len(orders(database)), len(app.find().jobs)) == (1, 1)


@pytest.mark.slow
def test_it_stops_cleanly_with_its_worker(shop: Example) -> None:
    web = Web(shop, API_WITH_WORKER)
    assert "Application shutdown complete" in web.process.end(signal.SIGTERM)
