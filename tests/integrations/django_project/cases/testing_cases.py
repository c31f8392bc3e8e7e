"""The mixin: a test sees what it has enqueued, runs it, and leaves nothing behind."""

from asgiref.sync import sync_to_async
from django.db import connection, transaction
from django.test import TestCase, TransactionTestCase
from shop.models import Order
from shop.tasks import confirm, confirm_async, count_orders, fail

from treadle import State
from treadle.integrations.django import app
from treadle.integrations.django.test import TreadleTestMixin
from treadle.testing import FakeClock


class MixinTests(TreadleTestMixin, TestCase):
    @classmethod
    def setUpTestData(cls):
        cls.order = Order.objects.create(email="ada@example.org")
        cls.first = confirm.enqueue(cls.order.pk)

    def test_what_was_enqueued_is_seen_and_runs_in_the_tests_transaction(self):
        self.assertEqual(self.assertEnqueued("confirm", order_id=self.order.pk).id, self.first.id)
        [job] = self.run_jobs()
        self.assertEqual((job.state, job.result), (State.SUCCEEDED, "ada@example.org"))
        self.order.refresh_from_db()
        self.assertTrue(self.order.confirmed)
        self.assertEqual(self.jobs(), [])

    def test_another_test_finds_everything_as_it_was(self):
        self.assertEqual([job.id for job in self.jobs()], [self.first.id])
        self.assertFalse(Order.objects.get().confirmed)

    def test_an_async_handler_sees_the_rows_of_the_test(self):
        confirm_async.enqueue(self.order.pk)
        self.assertEqual([job.result for job in self.run_jobs()], ["ada@example.org"] * 2)

    def test_a_job_of_a_block_that_is_rolled_back_is_not_there(self):
        with self.assertRaises(ZeroDivisionError), transaction.atomic():
            count_orders.enqueue()
            self.assertEqual(len(self.jobs("count_orders")), 1)
            1 / 0  # noqa: B018
        self.assertEqual(self.jobs("count_orders"), [])

    def test_a_job_that_fails_says_why(self):
        fail.enqueue("no ink")
        failed = self.run_jobs()[-1]
        self.assertEqual((failed.state, failed.error.message), (State.FAILED, "no ink"))
        self.assertEqual(app.get(failed.id).error.type, "LookupError")

    def test_an_assertion_names_what_waits_instead(self):
        with self.assertRaisesRegex(AssertionError, rf"no waiting job of task 'confirm' with .*{self.order.pk}"):
            self.assertEnqueued("confirm", order_id=-1)
        with self.assertRaisesRegex(AssertionError, r"of other tasks: \['confirm'\]"):
            self.assertEnqueued("fail")

    def test_operators_acts_are_part_of_the_test_too(self):
        app.pause(queue="mail", reason="test")
        count_orders.using(tx="default").enqueue()
        self.assertEqual([job.task for job in self.run_jobs()], ["confirm"])
        app.resume(queue="mail")
        self.assertEqual([job.task for job in self.run_jobs()], ["count_orders"])

    def test_keys_and_many_at_once_work_on_the_connection_of_the_test(self):
        first = count_orders.using(key="daily").enqueue()
        self.assertEqual(count_orders.using(key="daily").enqueue().id, first.id)
        fail.enqueue_many([(str(number),) for number in range(20)])
        self.assertEqual(len(self.jobs("fail")), 20)
        app.cancel(first.id)
        self.assertEqual(app.get(first.id).state, State.CANCELLED)
        self.assertEqual(app.retry(first.id).state, State.PENDING)

    async def test_an_async_test_awaits_the_same(self):
        order = await Order.objects.acreate(email="bob@example.org")
        job = await confirm_async.aenqueue(order.pk)
        self.assertEqual((await app.aget(job.id)).state, State.PENDING)
        results = [job.result for job in await self.arun_jobs()]
        self.assertEqual(results, ["ada@example.org", "bob@example.org"])
        await sync_to_async(order.refresh_from_db)()
        self.assertTrue(order.confirmed)


class ClockTests(TreadleTestMixin, TestCase):
    def test_a_clock_that_is_moved_by_hand_holds_for_the_jobs_of_the_test(self):
        clock = FakeClock()
        with app.override(clock=clock):
            count_orders.using(run_after="1d").enqueue()
            self.assertEqual(self.run_jobs(), [])
            clock.advance(days=1)
            self.assertEqual([job.result for job in self.run_jobs()], [0])


class NothingIsLeftTests(TreadleTestMixin, TestCase):
    def test_the_jobs_of_other_classes_are_gone(self):
        self.assertEqual(sum(app.count().values()), 0)
        self.assertEqual(app.pauses(), [])


class WithoutMixinTests(TestCase):
    def test_code_under_test_enqueues_into_the_transaction_of_the_test(self):
        order = Order.objects.create(email="ada@example.org")
        job = confirm.enqueue(order.pk)
        self.assertEqual(app.get(job.id), job)
        self.assertTrue(connection.in_atomic_block)


class TransactionMixinTests(TreadleTestMixin, TransactionTestCase):
    def tearDown(self):
        for job in self.jobs():
            app.cancel(job.id)

    def test_a_test_without_a_transaction_sees_and_runs_jobs_too(self):
        with transaction.atomic():
            order = Order.objects.create(email="eve@example.org")
            confirm.enqueue(order.pk)
        confirm_async.enqueue(order.pk)
        self.assertEqual([job.result for job in self.run_jobs()], ["eve@example.org"] * 2)
