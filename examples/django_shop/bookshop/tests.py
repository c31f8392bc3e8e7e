"""The shop's own tests: what was enqueued, and what running it does."""

from django.core import mail
from django.test import TestCase

from bookshop.models import Order
from treadle.integrations.django.test import TreadleTestMixin


class BuyTests(TreadleTestMixin, TestCase):
    """Orders, as a browser makes them."""

    def test_an_order_is_confirmed_by_mail(self) -> None:
        self.client.post("/buy", {"email": "ada@example.org", "title": "Dune"})
        self.assertEnqueued("confirm_order", order_id=Order.objects.get().pk)
        self.run_jobs()
        self.assertEqual([message.to for message in mail.outbox], [["ada@example.org"]])

    def test_what_is_sold_out_leaves_neither_order_nor_job(self) -> None:
        self.client.post("/buy", {"email": "ada@example.org", "title": "sold out"})
        self.assertEqual((Order.objects.count(), self.jobs()), (0, []))
