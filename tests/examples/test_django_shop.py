"""examples/django_shop: an order and its job in one transaction, the worker and the admin; on each Django."""

import json
import re
from collections.abc import Callable
from http.cookiejar import CookieJar
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, Request, build_opener

import pytest

from tests.examples.conftest import Example
from tests.support import django_env
from tests.support.workbench import until

MIGRATE = "python manage.py migrate"
SUPERUSER = "python manage.py createsuperuser --noinput --username ada --email ada@example.org"
SERVER = "python manage.py runserver"
WORKER = "python manage.py treadle worker"
GOOD_ORDER = "curl localhost:8000/buy -d email=ada@example.org -d title=Dune"
BAD_ORDER = 'curl localhost:8000/buy -d email=ada@example.org -d "title=sold out"'
JOBS = "python manage.py treadle jobs list"
NO_CHANGES = "python manage.py makemigrations --check --dry-run"
CONFIRMED = r"Dune is on its way"


class Browser:
    """A client that keeps its cookies."""

    def __init__(self, shop: Example) -> None:
        self._shop = shop
        self._cookies = CookieJar()
        self._opener = build_opener(HTTPCookieProcessor(self._cookies))
        self._port = shop.start(SERVER, "--noreload", "127.0.0.1:0").says(r"http://127\.0\.0\.1:(\d+)")

    def curl(self, command: str) -> str:
        """What `curl URL -d DATA` of the README prints."""
        words = self._shop.words(command)
        return self.post("/buy", dict(word.split("=", 1) for word in words if "=" in word))

    def get(self, path: str) -> str:
        return self._ask(Request(f"http://127.0.0.1:{self._port}{path}"))

    def post(self, path: str, form: dict[str, str]) -> str:
        token = {cookie.name: cookie.value or "" for cookie in self._cookies}.get("csrftoken", "")
        data = urlencode({**form, "csrfmiddlewaretoken": token}).encode()
        return self._ask(Request(f"http://127.0.0.1:{self._port}{path}", data))

    def _ask(self, request: Request) -> str:
        try:
            with self._opener.open(request, timeout=60) as answer:
                return str(answer.read().decode())
        except HTTPError as refused:
            with refused:
                return str(refused.read().decode())


@pytest.fixture(params=django_env.kinds())
def shop(request: pytest.FixtureRequest, example: Callable[[str], Example]) -> Example:
    opened = example("django_shop")
    opened.python = django_env.python(request.param)
    opened.environment["PYTHONPATH"] = str(django_env.ROOT / "src")
    opened.environment["DJANGO_SUPERUSER_PASSWORD"] = "pw"
    opened.run(MIGRATE)
    return opened


def alike(printed: str) -> list[str]:
    """The lines without ids, ages, durations and the width of columns."""
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID", printed)
    return [
        re.sub(" +", " ", re.sub(r"\d\S* ago|[\d.]+m?s\b", "…", line)).strip() for line in text.strip().splitlines()
    ]


@pytest.mark.slow
def test_an_order_gets_its_mail_and_the_refused_one_left_nothing(shop: Example) -> None:
    [expected] = shop.outputs
    shop.run(SUPERUSER)
    browser = Browser(shop)
    worker = shop.start(WORKER)
    good, bad = browser.curl(GOOD_ORDER), browser.curl(BAD_ORDER)
    worker.says(CONFIRMED)
    id = json.loads(good)["job"]
    browser.get("/admin/login/")
    browser.post("/admin/login/?next=/admin/", {"username": "ada", "password": "pw"})
    until(lambda: "succeeded" in browser.get(f"/admin/treadle/job/{id}/"), "the end of the job, in the admin")
    assert alike(f"{good}\n{bad}\n{shop.run(JOBS)}") == alike(expected)
    assert id in browser.get("/admin/treadle/job/?state=succeeded")
    browser.post("/admin/treadle/queue/", {"act": "pause", "queue": "default", "reason": "stocktaking"})
    assert "by admin:ada: stocktaking" in browser.get("/admin/treadle/queue/")


@pytest.mark.slow
def test_the_tests_of_the_shop_pass_and_it_has_no_migration_to_make(shop: Example) -> None:
    shop.run("python manage.py test")
    shop.commands.append(NO_CHANGES)
    assert "No changes detected" in shop.run(NO_CHANGES)
