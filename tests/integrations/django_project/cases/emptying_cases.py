"""The mixin in a TransactionTestCase: each test begins without the jobs and the rows of the others."""

from django.test import TransactionTestCase, tag
from shop.models import Order
from shop.tasks import count_orders, fail

from treadle import Unique
from treadle.integrations.django import app
from treadle.integrations.django.test import TreadleTestMixin

DAILY = {"key": "daily", "unique": Unique("ever", on_conflict="raise")}


@tag("own_connections")
class ALeavingTests(TransactionTestCase):
    def test_a_job_is_left_by_a_test_without_the_mixin(self):
        self.addCleanup(app.close)
        count_orders.using(**DAILY).enqueue()


class EmptyTests(TreadleTestMixin, TransactionTestCase):
    def see_only_what_it_has_done(self):
        self.assertEqual((app.find().jobs, app.pauses()), ([], []))
        job = count_orders.using(**DAILY).enqueue()
        self.assertEqual([one.id for one in self.jobs()], [job.id])
        self.assertEqual(len(self.run_jobs()), 1)
        fail.enqueue()
        self.run_jobs()
        app.pause(queue="mail", reason="test")
        self.assertEqual(sum(app.count().values()), 2)

    def test_the_first_sees_only_what_it_has_done(self):
        self.see_only_what_it_has_done()

    def test_the_second_sees_only_what_it_has_done(self):
        self.see_only_what_it_has_done()

    async def test_an_async_one_sees_only_what_it_has_done(self):
        self.assertEqual((await app.afind()).jobs, [])
        await count_orders.using(**DAILY).aenqueue()


class SetUpForTheClassTests(TreadleTestMixin, TransactionTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.order, cls.job = Order.objects.create(email="ada@example.org"), count_orders.enqueue()

    def test_what_the_class_has_enqueued_is_there_as_long_as_its_rows_are(self):
        self.assertEqual([job.id for job in self.jobs()], [self.job.id])
        self.assertEqual([job.result for job in self.run_jobs()], [1])
