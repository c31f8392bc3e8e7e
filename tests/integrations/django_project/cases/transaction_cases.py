"""What the app does inside `atomic()` is part of that block; outside, it is stored at once."""

import threading

from django.db import connection, transaction
from django.test import TransactionTestCase, tag
from shop.models import Order
from shop.tasks import confirm, count_orders

from treadle import JobNotFound, State
from treadle.integrations.django import app


@tag("own_connections")
class BlockTests(TransactionTestCase):
    def setUp(self):
        self.addCleanup(app.close)

    def seen_elsewhere(self, job):
        """Whether another thread, outside the block, finds the job."""
        found = []

        def look():
            try:
                found.append(app.get(job.id))
            except JobNotFound:
                pass
            finally:
                connection.close()

        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        return bool(found)

    def test_a_job_is_seen_by_others_when_its_block_commits(self):
        with transaction.atomic():
            order = Order.objects.create(email="ada@example.org")
            job = confirm.enqueue(order.pk)
            self.assertEqual(app.get(job.id), job)
            self.assertFalse(self.seen_elsewhere(job))
        self.assertTrue(self.seen_elsewhere(job))
        self.assertEqual(app.get(job.id), job)

    def test_a_job_goes_with_the_block_that_rolls_back(self):
        with self.assertRaises(ZeroDivisionError), transaction.atomic():
            Order.objects.create(email="ada@example.org")
            job = confirm.enqueue(1)
            1 / 0  # noqa: B018
        with self.assertRaises(JobNotFound):
            app.get(job.id)
        self.assertEqual(Order.objects.count(), 0)

    def test_an_inner_block_takes_only_its_own_jobs_along(self):
        with transaction.atomic():
            kept = count_orders.enqueue()
            with self.assertRaises(ZeroDivisionError), transaction.atomic():
                gone = count_orders.enqueue()
                1 / 0  # noqa: B018
        self.assertTrue(self.seen_elsewhere(kept))
        self.assertFalse(self.seen_elsewhere(gone))

    def test_an_act_of_an_operator_is_part_of_the_block_too(self):
        job = count_orders.enqueue()
        with transaction.atomic():
            app.cancel(job.id)
            self.assertEqual(app.get(job.id).state, State.CANCELLED)
            transaction.set_rollback(True)
        self.assertEqual(app.get(job.id).state, State.PENDING)

    def test_workers_are_woken_once_when_the_block_commits(self):
        with transaction.atomic():
            count_orders.enqueue()
            count_orders.enqueue()
            self.assertEqual(len(connection.run_on_commit), 1)
            with self.assertRaises(ZeroDivisionError), transaction.atomic():
                count_orders.enqueue()
                1 / 0  # noqa: B018
            self.assertEqual(len(connection.run_on_commit), 1)
        with transaction.atomic():
            app.count()
            self.assertEqual(connection.run_on_commit, [])

    def test_an_override_leads_away_from_the_block(self):
        with app.override("sqlite:///:memory:"), transaction.atomic():
            job = count_orders.enqueue()
            self.assertEqual(app.get(job.id), job)
        with self.assertRaises(JobNotFound):
            app.get(job.id)

    def test_outside_a_block_it_is_stored_at_once(self):
        self.assertTrue(self.seen_elsewhere(count_orders.enqueue()))

    def test_a_block_that_has_failed_refuses_the_job_in_djangos_own_words(self):
        with transaction.atomic():
            transaction.set_rollback(True)
            with self.assertRaises(transaction.TransactionManagementError):
                count_orders.enqueue()

    def test_a_refused_job_leaves_the_block_usable(self):
        with transaction.atomic():
            job = count_orders.enqueue()
            with self.assertRaises(JobNotFound):
                app.get("00000000-0000-7000-8000-000000000000")
            Order.objects.create(email="ada@example.org")
        self.assertTrue(self.seen_elsewhere(job))
        self.assertEqual(Order.objects.count(), 1)
