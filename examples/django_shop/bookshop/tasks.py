"""The jobs. Workers find this file by its name."""

from django.core.mail import send_mail
from django.utils import timezone

from bookshop.models import Order
from treadle import Retry
from treadle.integrations.django import app


@app.task(retry=Retry(max_attempts=3))
def confirm_order(order_id: int) -> str:
    """Send the buyer a mail, once: a job may run twice, so it looks whether that was done."""
    order = Order.objects.get(pk=order_id)
    if order.confirmed_at is None:
        send_mail(f"Your order {order.pk}", f"{order.title} is on its way.", "shop@example.org", [order.email])
        order.confirmed_at = timezone.now()
        order.save(update_fields=["confirmed_at"])
    return str(order.email)
