"""The connections of a Django project: those that a server drops under many threads, and ours to its test database."""

import psycopg
import pytest

from tests.integrations.django_projects import Project
from tests.integrations.test_django_worker import AGAIN, COMMAND, KEPT, ON_POSTGRES, ONE_DJANGO, READY, ended
from tests.support.workbench import until
from treadle import Retry, State, Treadle

pytestmark = ONE_DJANGO

DROP = (
    "select pid, pg_terminate_backend(pid) from pg_stat_activity"
    " where datname = current_database() and pid <> pg_backend_pid() and application_name <> 'treadle'"
)


def drop_connections(database: str) -> list[int]:
    """Let the server drop the connections of Django's, and wait for their end; the processes that served them."""
    with psycopg.connect(database, autocommit=True) as operator:
        dropped = [pid for pid, _ in operator.execute(DROP).fetchall()]
        alive = "select 1 from pg_stat_activity where pid = any(%s)"
        until(lambda: not operator.execute(alive, [dropped]).fetchall(), "the end of the connections")
    return dropped


def ended_four(app: Treadle) -> list[object]:
    """State and failures of four jobs that run at the same time."""
    ids = [app.enqueue("count_backends_four_at_once", checked=False).id for _ in range(4)]
    until(lambda: all(app.get(id).state.final for id in ids), "the end of all four")
    return [(job.state, job.failures) for job in map(app.get, ids)]


@pytest.mark.slow
@ON_POSTGRES
@pytest.mark.parametrize("task", ["count_backends", "count_backends_in_a_block"])
def test_one_drop_costs_one_attempt_however_many_threads_had_a_connection(project: Project, task: str) -> None:
    project.manage("migrate", "--run-syncdb", "--verbosity", "0")
    project.start(*COMMAND[:-1], "4", **KEPT).says(READY)
    all_well = [(State.SUCCEEDED, 0)] * 4
    with Treadle(project.database) as app:
        assert ended_four(app) == all_well
        for _ in range(2):
            assert len(drop_connections(project.database)) == 4
            job = ended(app, task, retry=AGAIN)
            assert (job.state, job.failures) == ("succeeded", 1), job
            assert ended_four(app) == all_well


@pytest.mark.slow
@ON_POSTGRES
def test_a_job_that_is_tried_again_gets_a_connection_that_was_checked(project: Project) -> None:
    project.manage("migrate", "--run-syncdb", "--verbosity", "0")
    project.start(*COMMAND, **KEPT).says(READY)
    with Treadle(project.database) as app:
        retry = Retry(max_attempts=5, base=3600)
        job = app.enqueue("count_backends_at_the_second_time", checked=False, retry=retry)
        until(lambda: app.get(job.id).failures, "the first failure")
        assert drop_connections(project.database)
        app.run_now(job.id)
        until(lambda: app.get(job.id).attempt == 2 and app.get(job.id).state != "running", "the second attempt")
        assert (app.get(job.id).state, app.get(job.id).failures) == ("succeeded", 1)


@pytest.mark.slow
@ON_POSTGRES
@pytest.mark.parametrize("more", [[], ["--parallel", "2"]], ids=["alone", "parallel"])
def test_a_test_database_is_dropped_although_tests_have_used_our_connections(project: Project, more: list[str]) -> None:
    project.manage("migrate", "--run-syncdb", "--verbosity", "0")
    said = project.manage("test", "cases.leaving", "--noinput", *more)
    assert "OK" in said
    with Treadle(project.database) as app:
        assert sum(app.count().values()) == 0
