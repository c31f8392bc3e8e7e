"""What handlers return and raise, as the store keeps it."""

from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel

from tests.support.marks import any_store
from treadle import Cancelled, GiveUp, Job, Reason, Retry, RetryLater, Snooze, State, Treadle
from treadle.testing import FakeClock, run_until_idle


class Summary(BaseModel):
    count: int
    price: Decimal


class Measured(BaseModel):
    value: float


class Loose(BaseModel):
    value: Any


@dataclass
class Point:
    x: int
    at: datetime


NUMBER = UUID("0190a000-0000-7000-8000-000000000001")
CYCLE: list[object] = []
CYCLE.append(CYCLE)
DEEP: list[object] = []
for _ in range(100_000):
    DEEP = [DEEP]


def returning(app: Treadle, value: object) -> Job:
    """The job of a handler that returned this."""
    app.register("give", lambda: value).enqueue()
    [job] = run_until_idle(app)
    return job


def raising(app: Treadle, error: BaseException, **options: object) -> Job:
    """The job of a handler that raised this, after its first attempt."""

    def fail() -> None:
        raise error

    app.register("fail", fail, **options).enqueue()
    return run_until_idle(app)[0]


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (None, None),
        ({}, {}),
        (0, 0),
        (False, False),
        ("Grüße 🌍", "Grüße 🌍"),
        (Summary(count=2, price=Decimal("1.10")), {"count": 2, "price": "1.10"}),
        (Point(1, datetime(2026, 1, 1, tzinfo=UTC)), {"x": 1, "at": "2026-01-01T00:00:00Z"}),
        ({"id": NUMBER, "points": (1, 2)}, {"id": str(NUMBER), "points": [1, 2]}),
        ([Summary(count=1, price=Decimal(0))], [{"count": 1, "price": "0"}]),
        (OrderedDict(a={"b": {1}}), {"a": {"b": [1]}}),
        ("a backslash and u0000: \\u0000", "a backslash and u0000: \\u0000"),
    ],
    ids=["none", "empty", "zero", "false", "text", "model", "dataclass", "uuid", "list", "set", "escaped"],
)
def test_a_result_is_stored_as_json(app: Treadle, value: object, stored: object) -> None:
    job = returning(app, value)
    assert (job.state, job.reason, job.error) == (State.SUCCEEDED, None, None)
    assert job.result == stored


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (float("nan"), "JSON"),
        ({"deep": [float("inf")]}, "JSON"),
        (b"bytes", "base64"),
        ({"a": b"bytes"}, "base64"),
        (CYCLE, "JSON"),
        (DEEP, "nested"),
        ("a\0b", "NUL"),
        ({"a\0b": 1}, "NUL"),
        ("half \ud800", "surrogate"),
        ("x" * (1024 * 1024), "limit"),
        (object(), "JSON"),
        ({(1, 2): 3}, "JSON"),
        (Measured(value=float("nan")), "JSON"),
        (Loose(value=float("nan")), "JSON"),
    ],
    ids=["nan", "deep infinity", "bytes", "deep bytes", "cycle", "deep", "nul", "nul in a key", "surrogate", "too long",
         "object", "tuple as key", "nan in a model", "nan in a loose model"],
)  # fmt: skip
def test_a_result_that_cannot_be_json_ends_the_job_without_a_retry(app: Treadle, value: object, problem: str) -> None:
    job = returning(app, value)
    assert (job.state, job.reason) == (State.FAILED, Reason.INVALID_RESULT)
    assert problem in job.error.message
    assert job.result is None
    assert job.attempt == 1


def test_a_result_that_raises_when_it_is_looked_at_ends_the_job(app: Treadle) -> None:
    class Trap(dict):
        def items(self) -> Any:
            raise RuntimeError("do not look")

    job = returning(app, Trap(a=1))
    assert (job.state, job.reason) == (State.FAILED, Reason.INVALID_RESULT)


# ------------------------------------------------------------------------------------------------- errors


def test_an_error_is_stored_with_type_message_traceback_attempt_and_time(app: Treadle, clock: FakeClock) -> None:
    class OutOfTea(Exception):
        pass

    def deeper() -> None:
        raise OutOfTea("no tea left")

    def brew() -> None:
        deeper()

    app.register("brew", brew).enqueue()
    error = run_until_idle(app)[0].error
    assert error.type.endswith("OutOfTea")
    assert error.message == "no tea left"
    assert (error.attempt, error.at) == (1, clock.now().isoformat())
    assert "in brew" in error.traceback
    assert "in deeper" in error.traceback
    assert error.traceback.rstrip().endswith("OutOfTea: no tea left")


def test_a_traceback_begins_in_the_handler_and_not_in_treadle(app: Treadle) -> None:
    trace = raising(app, ValueError("x")).error.traceback
    assert "/treadle/" not in trace
    assert trace.splitlines()[1].endswith("in fail")


def test_an_error_of_builtin_type_has_a_short_name(app: Treadle) -> None:
    assert raising(app, KeyError("colour")).error.type == "KeyError"


def test_the_cause_of_an_error_is_in_its_traceback(app: Treadle) -> None:
    def fail() -> None:
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise ValueError("outer") from error

    app.register("fail", fail).enqueue()
    trace = run_until_idle(app)[0].error.traceback
    assert "KeyError: 'inner'" in trace
    assert "ValueError: outer" in trace


def test_an_exception_that_cannot_be_printed_is_stored_all_the_same(app: Treadle) -> None:
    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    job = raising(app, Unspeakable())
    assert (job.state, job.failures) == (State.PENDING, 1)
    assert "Unspeakable" in job.error.type
    assert "cannot be printed" in job.error.message


def test_an_exception_whose_text_is_no_text_is_stored_all_the_same(app: Treadle) -> None:
    class Odd(Exception):
        def __str__(self) -> Any:
            return 7

    assert "Odd" in raising(app, Odd()).error.type


@any_store
def test_an_error_with_characters_no_store_takes_is_stored_readably(app: Treadle) -> None:
    message = raising(app, ValueError("a\0b \ud800 c")).error.message
    assert message.startswith("a")
    assert "\0" not in message
    assert "\\ud800" in message


def test_a_long_error_is_cut_keeping_the_beginning_of_its_message_and_the_end_of_its_traceback(app: Treadle) -> None:
    error = raising(app, ValueError("start " + "x" * 100_000 + " end")).error
    assert error.message.startswith("start x")
    assert len(error.message) < 5_000
    assert len(error.traceback) < 40_000
    assert error.traceback.rstrip().endswith("end")


# -------------------------------------------------------------------------- what a handler may say by raising


@any_store
def test_snooze_puts_the_job_back_and_spends_nothing(app: Treadle, clock: FakeClock) -> None:
    job = raising(app, Snooze("10m"))
    assert (job.state, job.failures, job.attempt, job.error) == (State.PENDING, 0, 1, None)
    assert (job.due_at - clock.now()).total_seconds() == 600


@any_store
def test_retry_later_spends_one_and_waits_as_long_as_it_says(app: Treadle, clock: FakeClock) -> None:
    job = raising(app, RetryLater("rate limited", after=90))
    assert (job.state, job.failures) == (State.PENDING, 1)
    assert job.error.message == "rate limited"
    assert (job.due_at - clock.now()).total_seconds() == 90


def test_retry_later_on_the_last_attempt_ends_the_job(app: Treadle) -> None:
    job = raising(app, RetryLater(after=90), retry=Retry(max_attempts=1))
    assert (job.state, job.reason) == (State.FAILED, Reason.EXHAUSTED)


def test_give_up_ends_the_job_at_once(app: Treadle) -> None:
    job = raising(app, GiveUp("no such user"))
    assert (job.state, job.reason, job.attempt) == (State.FAILED, Reason.PERMANENT, 1)
    assert job.error.message == "no such user"


def test_cancelled_ends_the_job_cancelled(app: Treadle) -> None:
    job = raising(app, Cancelled("no longer wanted"))
    assert (job.state, job.reason) == (State.CANCELLED, Reason.BY_REQUEST)
    assert app.events(job.id)[-1].note == "no longer wanted"


@any_store
@pytest.mark.covers("001-R25.a", "001-R25.b", "001-R26.b", "004-T01.b", "000-AC-31.a")
@pytest.mark.parametrize("budget", [3, 2])
def test_without_backoff_a_failed_job_is_pending_at_once_until_its_budget_is_spent(
    app: Treadle, clock: FakeClock, budget: int
) -> None:
    def fail() -> None:
        raise RuntimeError("boom")

    task = app.register("fail", fail, retry=Retry(max_attempts=3, base=0, cap=0, jitter=0))
    task.using(retry=task.options.retry._replace(max_attempts=budget)).enqueue()
    *retried, last = run_until_idle(app)
    assert [(job.state, job.failures, job.due_at) for job in retried] == [
        (State.PENDING, failures, clock.now()) for failures in range(1, budget)
    ]
    assert {job.error.message for job in retried} == {"boom"}
    assert (last.state, last.reason, last.failures, last.attempt) == (State.FAILED, Reason.EXHAUSTED, budget, budget)
    clock.advance(days=1)
    assert run_until_idle(app) == []


@any_store
@pytest.mark.covers("000-AC-30.a")
def test_with_backoff_a_failed_job_is_pending_for_a_later_time(app: Treadle, clock: FakeClock) -> None:
    job = raising(app, RuntimeError("boom"), retry=Retry(max_attempts=4, base=30, cap=900, jitter=0))
    assert (job.state, job.failures) == (State.PENDING, 1)
    assert (job.due_at - clock.now()).total_seconds() == 30


@pytest.mark.parametrize("error", [Snooze("soon"), RetryLater(after="-5"), Snooze(float("nan"))])  # type: ignore[list-item]
def test_a_delay_that_is_none_fails_the_attempt_and_says_why(app: Treadle, error: Exception) -> None:
    job = raising(app, error)
    assert (job.state, job.failures) == (State.PENDING, 1)
    assert job.error.type.endswith("InvalidTiming")
