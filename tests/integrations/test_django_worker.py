"""A worker beside a Django project: started both ways, and through the death of its database connections."""

import json

import psycopg
import pytest

from tests.integrations.django_projects import PROJECT, Project, Templates
from tests.support import django_env
from tests.support.sizes import size
from tests.support.workbench import until
from treadle import Job, Retry, Treadle

ONE_DJANGO = pytest.mark.parametrize("django_kind", django_env.kinds()[-size(1, long=2) :], indirect=True)
"""The newest, or in a long run each: what a worker does beside Django hardly depends on it."""
pytestmark = ONE_DJANGO
ON_POSTGRES = pytest.mark.parametrize(
    "database", [pytest.param("postgres", marks=[pytest.mark.server, pytest.mark.postgres])], indirect=True
)
ON_A_FILE = pytest.mark.parametrize("database", ["file"], indirect=True)
COMMAND = (str(PROJECT / "manage.py"), "treadle", "worker", "--concurrency", "1")
AGAIN = Retry(max_attempts=5, base=0.05, jitter=0)
KEPT, CHECKED = {"CONN_MAX_AGE": "600"}, {"CONN_MAX_AGE": "600", "CONN_HEALTH_CHECKS": "1"}
READY = r"worker .*: queues default, mail"


@pytest.fixture
def project(project: Project, templates: Templates) -> Project:
    """The project with its tables."""
    templates.copy_to(project)
    return project


def ended(app: Treadle, task: str, payload: object = None, retry: Retry = AGAIN) -> Job:
    """A job of this task, once it has ended."""
    job = app.enqueue(task, payload, checked=False, retry=retry)
    return until(lambda: now if (now := app.get(job.id)).state.final else None, lambda: f"the end of {app.get(job.id)}")


@pytest.mark.slow
@ON_A_FILE
def test_a_worker_starts_through_manage_and_through_treadle_alike(project: Project) -> None:
    with Treadle(f"sqlite:///{project.database}") as app:
        by_itself = ("-m", "treadle", "worker")
        for words, more in {COMMAND: {}, by_itself: {"DJANGO_SETTINGS_MODULE": "shop.settings"}}.items():
            worker = project.start(*words, **more)
            worker.says(READY)
            assert ended(app, "count_orders_async").result == 0
            exits = ended(app, "shop.tasks.exits", {"args": [], "kwargs": {}}, Retry(max_attempts=1))
            assert (exits.state, exits.error.type) == ("failed", "SystemExit")
            worker.end(15)


@pytest.mark.slow
@ON_A_FILE
def test_settings_that_cannot_be_imported_are_named(project: Project) -> None:
    worker = project.start("-m", "treadle", "worker", DJANGO_SETTINGS_MODULE="shop.nothing")
    worker.says(r"error: app: importing shop\.nothing \(from DJANGO_SETTINGS_MODULE\) failed: ModuleNotFoundError")


@pytest.mark.slow
@ON_A_FILE
def test_tasks_and_results_pass_between_processes(project: Project) -> None:
    worker = project.start(*COMMAND)
    worker.says(READY)
    ids = json.loads(
        project.shell(
            "import json; from shop import tasks; from treadle.integrations.django import app;"
            "print(json.dumps([tasks.add.enqueue(2, 3).id, tasks.fail_with.enqueue('value').id]))"
        )
    )
    with Treadle(f"sqlite:///{project.database}") as app:
        until(lambda: all(app.get(id).state.final for id in ids), "the end of both")
    said = project.shell(
        "from shop import tasks; "
        f"good, bad = tasks.add.get_result('{ids[0]}'), tasks.fail_with.get_result('{ids[1]}'); "
        "print(good.return_value, good.status, bad.status, bad.errors[0].exception_class.__name__)"
    )
    assert said.splitlines()[-1] == "5 SUCCESSFUL FAILED ValueError"


@pytest.mark.slow
@ON_POSTGRES
def test_a_worker_is_woken_by_the_commit_of_a_block_elsewhere(project: Project) -> None:
    project.start(*COMMAND, "--poll", "100s").says(READY)
    buying = "with transaction.atomic(): print(tasks.count_orders.enqueue().id)"
    id = project.shell(f"from django.db import transaction; from shop import tasks\n{buying}").splitlines()[-1]
    with Treadle(project.database) as app:
        job = until(lambda: now if (now := app.get(id)).state.final else None, lambda: f"the end of {app.get(id)}")
    assert (job.claimed_at - job.created_at).total_seconds() < 20


@pytest.mark.slow
@ON_POSTGRES
@pytest.mark.parametrize(
    ("task", "settings"),
    [("count_backends", {}), ("count_backends", KEPT), ("count_backends", CHECKED), ("count_backends_async", KEPT)],
    ids=["new", "kept", "checked", "async"],
)
def test_jobs_go_on_after_the_server_has_dropped_the_connections_of_the_handlers(
    project: Project, task: str, settings: dict[str, str]
) -> None:
    worker = project.start(*COMMAND, **settings)
    worker.says(READY)
    with Treadle(project.database) as app:
        first = ended(app, task)
        assert first.state == "succeeded", first
        with psycopg.connect(project.database, autocommit=True) as operator:
            operator.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = current_database() and pid <> pg_backend_pid() and application_name <> 'treadle'"
            )
            left = operator.execute("select 1 from pg_stat_activity where pid = %s", [first.result])
            until(lambda: not left.fetchall(), "the end of the connection")
        later = [ended(app, task) for _ in range(4)]
    assert [job.state for job in later] == ["succeeded"] * 4, later
    assert first.result not in [job.result for job in later]
    assert sum(job.failures for job in later) <= (1 if settings == KEPT else 0), later
