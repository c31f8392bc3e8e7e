"""Flask: settings from its config, handlers in its app context, commands among its own."""

import logging
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from flask import Blueprint, Flask, current_app, g, has_app_context

from tests.integrations.conftest import FAULTS, add, any_fault, check_answer, check_unavailable
from tests.integrations.server import Server
from tests.support.workbench import QUICK, ended, working
from treadle import ConfigError, Retry, State, Treadle
from treadle.integrations.flask import FlaskTreadle, JobView, add_error_handlers, current_jobs
from treadle.testing import run_until_idle

NOBODY = "00000000-0000-7000-8000-000000000000"
PROGRAM = """
import time
from flask import Flask, current_app
from treadle.integrations.flask import FlaskTreadle

jobs = FlaskTreadle()

@jobs.task
def greet(name: str) -> str:
    return f"{current_app.config['GREETING']} {name}"

@jobs.task
def sleep(seconds: float) -> str:
    print("asleep", flush=True)
    time.sleep(seconds)
    return "rested"

def create_app() -> Flask:
    app = Flask(__name__)
    app.config.update(GREETING="hello", TREADLE_URL="sqlite:///jobs.db", TREADLE_POLL="0.05s", TREADLE_LEASE="3s")
    jobs.init_app(app)
    app.get("/greet/<name>")(lambda name: greet.enqueue(name).id)
    return app
"""


@pytest.fixture
def jobs() -> Iterator[FlaskTreadle]:
    with closing(FlaskTreadle(poll=0.05)) as app:
        app.register("add", add)
        yield app


def site(jobs: FlaskTreadle, folder: Path, **config: Any) -> Flask:
    """As a factory of the user's makes it."""
    app = Flask(__name__)
    app.config.from_mapping({"TREADLE_URL": f"sqlite:///{folder}/jobs.db", **config})
    jobs.init_app(app)
    add_error_handlers(app)
    return app


@pytest.fixture
def app(jobs: FlaskTreadle, tmp_path: Path) -> Flask:
    return site(jobs, tmp_path, SHOP="Ada's")


def test_settings_come_from_the_config_of_the_app(jobs: FlaskTreadle, tmp_path: Path) -> None:
    site(jobs, tmp_path, TREADLE_CONCURRENCY=3, TREADLE_LEASE="90s", OTHER=1)
    settings = jobs.settings
    assert (settings.url, settings.concurrency, settings.lease) == (f"sqlite:///{tmp_path}/jobs.db", 3, 90.0)
    assert settings.poll == 0.05  # as the constructor was told


def test_the_config_wins_over_the_variables_of_the_environment(
    jobs: FlaskTreadle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TREADLE_URL", "sqlite:///other.db")
    monkeypatch.setenv("TREADLE_GRACE", "7s")
    site(jobs, tmp_path)
    assert (jobs.settings.url, jobs.settings.grace) == (f"sqlite:///{tmp_path}/jobs.db", 7.0)


def test_a_misspelt_key_of_the_config_is_refused(jobs: FlaskTreadle, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="concurency: is not a setting, did you mean concurrency"):
        site(jobs, tmp_path, TREADLE_CONCURENCY=3)


def test_an_extension_can_be_given_its_app_at_once(tmp_path: Path) -> None:
    app = Flask(__name__)
    app.config["TREADLE_URL"] = f"sqlite:///{tmp_path}/jobs.db"
    with closing(FlaskTreadle(app)) as jobs, app.app_context():
        assert (jobs.settings.url, current_jobs.count()[State.PENDING]) == (f"sqlite:///{tmp_path}/jobs.db", 0)
    with pytest.raises(ConfigError, match="str is not a Flask app"):
        FlaskTreadle("sqlite:///jobs.db")  # type: ignore[arg-type]


def test_handlers_run_inside_the_app_context_and_each_in_its_own(jobs: FlaskTreadle, app: Flask) -> None:
    seen = []

    @jobs.task
    def plain() -> str:
        g.number = g.get("number", 0) + 1
        return f"{current_app.config['SHOP']} {g.number}"

    @jobs.task
    async def coroutine() -> str:
        g.number = g.get("number", 0) + 1
        return f"{current_app.config['SHOP']} {g.number}"

    app.teardown_appcontext(seen.append)
    stored = [plain.enqueue(), plain.enqueue(), coroutine.enqueue(), coroutine.enqueue()]
    with working(jobs, **QUICK):
        done = ended(jobs, *stored)
    assert [job.result for job in done] == ["Ada's 1"] * 4
    assert seen == [None] * 4
    assert not has_app_context()


def test_the_context_is_torn_down_with_the_error_of_the_handler(jobs: FlaskTreadle, app: Flask) -> None:
    seen = []

    @jobs.task(retry=Retry(max_attempts=1))
    def fail() -> None:
        raise ValueError("not today")

    app.teardown_appcontext(lambda error: seen.append(str(error)))
    fail.enqueue()
    run_until_idle(jobs)
    assert seen == ["not today"]


def test_a_job_without_an_app_says_what_to_call() -> None:
    with closing(FlaskTreadle(url="sqlite:///:memory:")) as jobs:
        job = jobs.register("add", add).using(retry=Retry(max_attempts=1)).enqueue(1, 2)
        run_until_idle(jobs)
        assert "call jobs.init_app(app)" in jobs.get(job.id).error.message
        with pytest.raises(ConfigError, match=r"call jobs\.init_app\(app\)"):  # it would look into another store
            jobs.worker()


def test_a_request_enqueues_and_shows_the_job_as_json(jobs: FlaskTreadle, app: Flask) -> None:
    pages = Blueprint("pages", __name__)

    @pages.post("/sums")
    def put() -> dict[str, Any]:
        return {"job": current_jobs.enqueue("add", {"a": 1, "b": 2}).id}

    @pages.get("/jobs/<job_id>")
    def show(job_id: str) -> dict[str, Any]:
        return JobView.of(current_jobs.get(job_id)).model_dump(mode="json")

    app.register_blueprint(pages)
    web = app.test_client()
    job = web.post("/sums").json["job"]
    run_until_idle(jobs)
    shown = web.get(f"/jobs/{job}").json
    assert (shown["state"], shown["result"], shown["error"]) == ("succeeded", 3, None)
    assert web.get("/jobs/nobody").status_code == 404


def test_the_jobs_of_an_app_that_has_none_are_missed_in_words() -> None:
    with Flask(__name__).app_context(), pytest.raises(ConfigError, match=r"call jobs.init_app\(app\)"):
        current_jobs.count()


def test_each_app_of_a_factory_has_its_own_store(jobs: FlaskTreadle, tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        app = site(jobs, tmp_path / name, SHOP=name)
        job = jobs.register(f"shop_{name}", lambda: current_app.config["SHOP"]).enqueue()
        run_until_idle(jobs)
        with app.app_context():
            assert [(one.id, one.result) for one in current_jobs.find().jobs] == [(job.id, name)]


@any_fault
def test_what_a_client_did_wrong_is_answered_with_the_field_and_the_way_out(
    jobs: FlaskTreadle, app: Flask, fault: str
) -> None:
    app.get("/")(lambda: [FAULTS[fault][0](jobs)])
    answer = app.test_client().get("/")
    check_answer(fault, answer.status_code, answer.json)


def test_a_store_that_does_not_answer_is_a_503(
    jobs: FlaskTreadle, away: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    app = site(jobs, tmp_path, TREADLE_URL=away)
    app.get("/")(lambda: str(jobs.count()))
    answer = app.test_client().get("/")
    check_unavailable(answer.status_code, answer.headers, answer.json)
    assert "hunter2" not in caplog.text


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(PROGRAM, "utf-8")
    return tmp_path


def stored(folder: Path) -> Treadle:
    return Treadle(f"sqlite:///{folder}/jobs.db")


@pytest.mark.slow
def test_flask_treadle_worker_runs_what_a_request_of_flask_run_enqueued(program: Path) -> None:
    with Server(program, ["flask", "--app", "shop", "run", "--port", "0"]) as server:
        job = server.get("/greet/Ada")
    with Server(program, ["flask", "--app", "shop", "treadle", "worker", "--until-idle"]) as worker:
        worker.says("store   sqlite:///jobs.db")
        assert worker.wait() == 0
    with stored(program) as jobs:
        assert jobs.get(job).result == "hello Ada"


@pytest.mark.slow
def test_flask_treadle_has_the_commands_of_treadle_and_their_exit_codes(program: Path) -> None:
    with Server(program, ["flask", "--app", "shop", "treadle", "enqueue", "greet", '{"name": "Ada"}']) as command:
        assert command.wait() == 0
    with Server(program, ["flask", "--app", "shop", "treadle", "jobs", "list", "--json"]) as command:
        command.says('"task": "greet"')
        assert command.wait() == 0
    with Server(program, ["flask", "--app", "shop", "treadle", "--help"]) as command:
        command.says("A job queue in the database you already have")
        assert command.wait() == 0
    with Server(program, ["flask", "--app", "shop", "treadle", "jobs", "show", NOBODY]) as command:
        command.says(f"error: there is no job {NOBODY}")
        assert command.wait() == 1


@pytest.mark.slow
def test_sigterm_stops_the_worker_within_its_grace_and_releases_what_runs_on(program: Path) -> None:
    words = ["flask", "--app", "shop", "treadle", "worker", "--grace", "0.5s"]
    with stored(program) as jobs:
        job = jobs.enqueue("sleep", {"seconds": 600}, checked=False)
        with Server(program, words) as worker:
            worker.says("asleep")
            assert "stopped" in worker.stop(signal.SIGTERM)
            assert worker.wait() == 0
        left = jobs.get(job.id)
        assert (left.state, left.failures, jobs.workers()) == (State.PENDING, 0, [])
