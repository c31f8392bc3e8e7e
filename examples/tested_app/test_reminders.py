"""The reminders, tested: what is enqueued, what jobs do, when they do it, and handlers on their own."""

from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime

import pytest
import reminders

from treadle import Job, Reason, State
from treadle.testing import FakeClock, FakeContext, assert_enqueued, assert_not_enqueued

Run = Callable[[], list[Job]]


@pytest.fixture(autouse=True)
def _nothing_ordered() -> Iterator[None]:
    yield
    reminders.ORDERS.clear()
    reminders.OUTBOX.clear()


def test_an_order_asks_for_its_mails_and_sends_none_itself() -> None:
    reminders.take_order(7, "ada@example.org")
    assert_enqueued(reminders.app, reminders.mail, payload={"to": "ada@example.org", "text": "thank you for order 7"})
    assert_enqueued(reminders.app, reminders.remind, payload={"order": 7})
    assert reminders.OUTBOX == []


def test_who_does_not_pay_is_reminded_the_next_day(treadle_run: Run, treadle_clock: FakeClock) -> None:
    reminders.take_order(7, "ada@example.org")
    treadle_run()
    assert reminders.OUTBOX == ["ada@example.org: thank you for order 7"]
    treadle_clock.advance(days=1)
    treadle_run()
    assert reminders.OUTBOX[1:] == ["ada@example.org: order 7 is not paid yet"]


def test_who_pays_is_not_reminded(treadle_run: Run, treadle_clock: FakeClock) -> None:
    reminders.take_order(7, "ada@example.org")
    reminders.pay(7)
    treadle_clock.advance(days=1)
    treadle_run()
    assert_not_enqueued(reminders.app, reminders.mail)


def test_a_wrong_address_is_not_tried_again(treadle_run: Run) -> None:
    reminders.mail.enqueue("nowhere", "hello")
    [job] = treadle_run()
    assert (job.state, job.reason) == (State.FAILED, Reason.PERMANENT)


async def test_the_report_comes_in_the_morning(
    treadle_arun: Callable[[], Awaitable[list[Job]]], treadle_clock: FakeClock
) -> None:
    assert await treadle_arun() == []
    treadle_clock.advance(days=1)
    assert [job.result for job in await treadle_arun()] == ["02 Jan: 0 not paid"]


async def test_handlers_are_plain_functions() -> None:
    ctx = FakeContext(tick=datetime(2026, 3, 1, 5, tzinfo=UTC))
    assert await reminders.morning_report(ctx) == "01 Mar: 0 not paid"
    reminders.ORDERS[7] = "ada@example.org"
    ctx = FakeContext(attempt=2)
    assert reminders.remind(ctx, 7)
    assert ctx.messages == ["order 7 is not paid"]
    assert ctx.reported[-1].note == "reminded"
