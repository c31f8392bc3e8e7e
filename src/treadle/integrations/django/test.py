"""For the tests of a Django project: see the jobs that a test has enqueued, and run them, inside its transaction.

class OrderTests(TreadleTestMixin, TestCase):
    def test_an_order_sends_its_receipt(self):
        place_order("ada@example.org")
        self.assertEnqueued("send_receipt", address="ada@example.org")
        self.run_jobs()
        self.assertEqual(len(mail.outbox), 1)
"""

from collections.abc import Coroutine, Sequence
from typing import Any

from asgiref.sync import async_to_sync, sync_to_async
from django.test import TestCase

from treadle.errors import ConfigError
from treadle.integrations.django import app
from treadle.integrations.django.database import connection_of, empty_tables
from treadle.model import Job, State
from treadle.testing import run_until_idle


class TreadleTestMixin:
    """For TestCase, TransactionTestCase and what is made of them; put it before them.

    All that `app` does in such a test is done on the test's own connection, in its transaction. A TransactionTestCase
    has none: treadle's tables are emptied before the first test of the class, and after each one.
    """

    @classmethod
    def setUpClass(cls) -> None:
        if app.database is None:
            raise ConfigError("TREADLE: url leads away from Django's databases, where no test's transaction reaches")
        connection = connection_of(app.database)
        cls.enterClassContext(app._store.tested_on(connection))  # type: ignore[attr-defined]
        if not issubclass(cls, TestCase):
            empty_tables(connection)  # tests without the mixin leave their jobs
        super().setUpClass()  # type: ignore[misc]

    def run(self, result: Any = None) -> Any:
        """As unittest's; what is added first is cleaned up last, after all that the test does."""
        alias = app.database
        if alias is not None and alias in self.databases and not isinstance(self, TestCase):  # type: ignore[attr-defined]
            self.addCleanup(empty_tables, connection_of(alias))  # type: ignore[attr-defined]
        return super().run(result)  # type: ignore[misc]

    def jobs(self, task: str | None = None, **fields: Any) -> list[Job]:
        """The jobs that wait, of this task if one is named, the first enqueued first; `fields` as in `app.find`."""
        return app.find(task=task, limit=500, **{"state": State.PENDING, **fields}).jobs[::-1]

    def assertEnqueued(self, task: str, **payload: Any) -> Job:  # noqa: N802 - as unittest names them
        """The first waiting job of this task whose payload has these values; AssertionError if there is none."""
        waiting = self.jobs(task)
        for job in waiting:
            if payload.items() <= job.payload.items():
                return job
        seen = [job.payload for job in waiting] or f"none; of other tasks: {[job.task for job in self.jobs()]}"
        raise AssertionError(f"no waiting job of task {task!r} with {payload}; waiting: {seen}")

    def run_jobs(self, *, queues: Sequence[str] | None = None, limit: int = 1000) -> list[Job]:
        """Run what is due, one job after the other, and what that enqueues; the jobs after each attempt.

        Async handlers too: their queries go to the test's own connection.
        """
        return run_until_idle(app, queues=queues, limit=limit, run_coroutine=_run_coroutine)

    async def arun_jobs(self, *, queues: Sequence[str] | None = None, limit: int = 1000) -> list[Job]:
        """`run_jobs` for an async test."""
        jobs: list[Job] = await sync_to_async(self.run_jobs)(queues=queues, limit=limit)
        return jobs


def _run_coroutine(coroutine: Coroutine[Any, Any, Any]) -> Any:
    async def run() -> Any:
        return await coroutine

    return async_to_sync(run)()
