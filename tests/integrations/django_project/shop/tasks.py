"""Jobs of treadle's own kind, and tasks of Django's."""

import sys
import threading
from importlib.util import find_spec

from asgiref.sync import sync_to_async
from django.db import transaction

from shop.models import Order
from treadle import Context, Retry
from treadle.integrations.django import app

if find_spec("django.tasks") is not None:
    from django.tasks import task
else:
    from django_tasks import task


@app.task
def confirm(order_id: int) -> str:
    order = Order.objects.get(pk=order_id)
    order.confirmed = True
    order.save()
    return order.email


@app.task
async def confirm_async(order_id: int) -> str:
    order = await Order.objects.aget(pk=order_id)
    order.confirmed = True
    await order.asave()
    return order.email


@app.task(retry=Retry(max_attempts=1))
def fail(message: str = "no paper") -> None:
    raise LookupError(message)


@app.task(queue="mail")
def count_orders(ctx: Context) -> int:
    return Order.objects.count()


@app.task
async def count_orders_async() -> int:
    return await sync_to_async(Order.objects.count)()


@app.task
def count_backends() -> int:
    """The process of the server that serves this thread."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("select pg_backend_pid()")
        return cursor.fetchone()[0]


@app.task
async def count_backends_async() -> int:
    return await sync_to_async(count_backends.handler)()


four = threading.Barrier(4)


@app.task
def count_backends_four_at_once() -> int:
    """The same, once four of these jobs have asked: each is in a thread of its own."""
    backend = count_backends.handler()
    four.wait(60)
    return backend


@app.task
def count_backends_at_the_second_time(ctx: Context) -> int:
    backend = count_backends.handler()
    if not ctx.job.failures:
        raise LookupError("once")
    return backend


@app.task
def count_backends_in_a_block() -> int:
    with transaction.atomic():
        return count_backends.handler()


# ---------------------------------------------------------------------------------- tasks of Django's


class Unprintable(Exception):
    def __init__(self, message: str, second: object) -> None:
        super().__init__(message)
        self.second = second


@task
def add(a, b=0):
    return a + b


@task()
async def add_async(a, b=0):
    return a + b


@task(priority=7, queue_name="mail")
def noop(*args, **kwargs):
    return None


@task
def fail_with(name):
    raise {"value": ValueError("it was wrong"), "own": Unprintable("it was odd", lambda: None)}[name]


@task
async def fail_async():
    raise ValueError("it was wrong")


@task
def exits():
    sys.exit("enough")


@task
def returns_odd():
    return lambda: True


@task(takes_context=True)
def attempt(context):
    return [context.attempt, context.task_result.id, context.task_result.status.value]


@task(takes_context=True)
async def attempt_async(context, plus):
    return context.attempt + plus


@task(backend="stubborn", takes_context=True)
def third_time_lucky(context):
    if context.attempt < 3:
        raise OSError(f"not yet: {context.attempt}")
    return context.attempt


@task
def order_count():
    return Order.objects.count()
