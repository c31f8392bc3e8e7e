"""The pages over an app whose profile has words and fields of its own: they are told under treadle's own names."""

from collections.abc import Callable

import pytest
from starlette.testclient import TestClient

from tests.server.conftest import Client, with_tasks
from tests.server.reading import page, text
from treadle import Treadle
from treadle.app.profile import Profile
from treadle.server.dashboard.page import PAGES
from treadle.testing import FakeClock, run_until_idle

PROFILE = Profile(
    states={"pending": "queued", "scheduled": "later", "failed": "broken"},
    fields={"uid": "id", "what": "task", "state": "state"},
    schedules={"uid": "id", "title": "name"},
)


@pytest.fixture
def app(make_app: Callable[..., Treadle], clock: FakeClock) -> Treadle:
    app = with_tasks(make_app(profile=PROFILE))
    app.schedules.create("nightly", "greet", {"name": "Ada"}, every="1h", actor="ada")
    for name in ("Ada", "Grace"):
        app.enqueue("greet", {"name": name})
    app.tasks["greet"].using(run_after="1h").enqueue(name="Edsger")
    app.enqueue("give_up", {"why": "no such order"}, queue="other")
    run_until_idle(app, queues=["other"])
    return app


@pytest.fixture
def client(app: Treadle, http: TestClient) -> Client:
    http.app.serve_app(app)
    return Client(http, app.tokens.create("reader", scopes=["read", "operate"]).secret)


def test_every_page_knows_the_jobs_and_schedules(app: Treadle, client: Client) -> None:
    [failed] = [job.id for job in app.find(task="give_up").jobs]
    schedule = app.schedules.get("nightly")
    paths = [path for path, _, _ in PAGES]
    for path in [*paths, f"/jobs/{failed}", "/schedules/nightly", f"/schedules/{schedule.id}/edit"]:
        assert "<h1>" in page(client, path), path
    assert 'href="/schedules/nightly">nightly</a>' in page(client, "/")


@pytest.mark.parametrize("what", [{"task": "greet"}, {"task": "greet", "queue": "default"}], ids=str)
def test_what_a_pause_would_hold_back_is_counted(client: Client, what: dict[str, str]) -> None:
    shown = text(page(client, "/queues", act="pause", **what))
    assert "3 jobs wait behind it" in shown
    assert "None runs now." in shown


def test_a_client_elsewhere_is_told_of_the_overview_under_our_names(client: Client) -> None:
    found = client.ask("GET", "/overview", headers={"Treadle-Own-Names": "1"}).json()
    assert found["schedules"][0]["name"] == "nightly"
    assert client.get("/overview")["schedules"][0]["title"] == "nightly"
