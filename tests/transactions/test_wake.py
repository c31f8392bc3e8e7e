"""A job that was enqueued in the caller's transaction starts after the commit, not at the worker's next poll."""

import asyncio
import time
from collections.abc import Iterator

import psycopg
import pytest

from tests.support.workbench import ended, until, working
from tests.transactions.libraries import Library, Shop
from treadle import InvalidJob, Job, State, Task, Treadle
from treadle.worker.worker import Worker

TELLING = [
    "sqlalchemy-session", "sqlalchemy-session-nested", "sqlalchemy-scoped-session", "sqlalchemy-async-session-asyncpg",
    "django-alias", "django-connection",
]  # fmt: skip
POLL = 120.0  # seconds: whatever starts earlier was woken


def idle(app: Treadle, worker: Worker) -> None:
    """Wait until the worker rests, and listens where it can."""
    if (store := getattr(app.engine, "_store", None)) is not None:
        until(store.notifications._listening.is_set, "the listener", within=60)
    until(lambda: worker._turns._state.rest_until > time.monotonic() + POLL / 2, "an idle worker", within=60)


def committed(library: Library, shop: Shop, task: Task, **using: object) -> Job:
    async def scene() -> Job:
        async with library.transaction(shop) as caller:
            await caller.add("Ada")
            return await caller.enqueue(task, "Ada", **using)

    job: Job = library.play(scene())
    return job


@pytest.mark.parametrize("library", TELLING, indirect=True)
def test_the_commit_of_a_library_that_tells_wakes_the_worker_of_this_process(
    library: Library, shop: Shop, app: Treadle, welcome: Task
) -> None:
    with working(app, poll=POLL) as worker:
        idle(app, worker)
        [job] = ended(app, committed(library, shop, welcome))
    assert job.state is State.SUCCEEDED


@pytest.fixture
def elsewhere(shop: Shop) -> Iterator[Treadle]:
    """An app with connections of its own, as another process has: nothing but the server tells it."""
    with Treadle(shop.url) as app:

        @app.task
        def welcome(user: str) -> str:
            return f"welcome {user}"

        yield app


@pytest.mark.parametrize("library", ["psycopg", "asyncpg", "sqlalchemy-connection", "django-alias"], indirect=True)
def test_with_notify_the_commit_wakes_the_workers_of_other_processes(
    library: Library, shop: Shop, elsewhere: Treadle, welcome: Task
) -> None:
    with working(elsewhere, poll=POLL) as worker:
        idle(elsewhere, worker)
        [job] = ended(elsewhere, committed(library, shop, welcome, notify=True))
    assert job.state is State.SUCCEEDED


@pytest.mark.parametrize("library", ["psycopg"], indirect=True)
@pytest.mark.parametrize("is_async", [False, True])
def test_app_wake_after_the_commit_reaches_every_process(
    library: Library, shop: Shop, app: Treadle, elsewhere: Treadle, welcome: Task, is_async: bool
) -> None:
    with working(elsewhere, poll=POLL) as worker:
        idle(elsewhere, worker)
        job = committed(library, shop, welcome)
        if is_async:
            asyncio.run(app.awake("default"))
        else:
            app.wake("default")
        ended(elsewhere, job)
    with pytest.raises(InvalidJob, match="queue"):
        app.wake("")


@pytest.mark.parametrize("library", ["sqlite3"], indirect=True)
def test_on_sqlite_the_commit_itself_is_seen(library: Library, shop: Shop, app: Treadle, welcome: Task) -> None:
    with working(app, poll=POLL) as worker:
        idle(app, worker)
        ended(app, committed(library, shop, welcome))


@pytest.mark.parametrize("library", ["psycopg"], indirect=True)
def test_without_notify_no_notification_is_sent_that_would_queue_your_commits(
    library: Library, shop: Shop, app: Treadle, welcome: Task
) -> None:
    with psycopg.connect(shop.server, autocommit=True) as listener:
        channel = app.engine._store.notifications.channel  # type: ignore[attr-defined]
        listener.execute(f"listen {channel}")
        committed(library, shop, welcome)
        shop.look(f"delete from {shop.people}")
        listener.execute("select 1")
        assert list(listener.notifies(timeout=0.2)) == []
        committed(library, shop, welcome, notify=True)
        assert len(list(listener.notifies(timeout=10, stop_after=1))) == 1
