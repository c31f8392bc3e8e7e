"""Tests without our mixin, whose calls of `app` are outside `atomic()`: they leave our own connections open.

tests/integrations/test_django_connections.py runs them by themselves: nothing else closes these connections then.
"""

from django.db import connection
from django.test import TestCase, TransactionTestCase
from shop.tasks import count_orders

from treadle.integrations.django import app

CONCURRENCY = app.settings.concurrency  # read before there is a test database


def kept(job):
    """Whether the database that Django uses now has this job."""
    table = "treadle.jobs" if connection.vendor == "postgresql" else "treadle_jobs"
    with connection.cursor() as cursor:
        cursor.execute(f"select count(*) from {table} where id = %s", [job.id])
        return cursor.fetchone()[0] == 1


class LeavesTests(TransactionTestCase):
    def test_a_job_is_stored_in_the_test_database(self):
        job = count_orders.enqueue()
        self.assertTrue(kept(job))
        self.assertEqual(app.settings.concurrency, CONCURRENCY)


class LeavesMoreTests(TransactionTestCase):
    def test_a_job_is_stored_in_the_test_database_of_a_process_that_runs_beside_it(self):
        self.assertTrue(kept(count_orders.enqueue()))


class LooksTests(TestCase):
    async def test_an_async_test_looks(self):
        await app.acount()
