"""Handlers of every shape, and how their arguments travel: checked when enqueued, checked again when run."""

import functools
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import AfterValidator, BaseModel, Field, SecretStr, computed_field

from tests.support.marks import any_store
from treadle import ConfigError, Context, InvalidPayload, Job, Reason, Retry, State, Task, Treadle
from treadle.testing import run_until_idle


class Colour(Enum):
    RED = "red"


@dataclass
class Point:
    x: int
    y: int = 0


class Line(BaseModel):
    article: str
    count: int = 1


class Order(BaseModel):
    number: UUID
    lines: list[Line]


class Renamed(BaseModel):
    user_id: int = Field(alias="userId")


class WithTotal(BaseModel):
    model_config = {"extra": "forbid"}
    net: int

    @computed_field
    @property
    def gross(self) -> int:
        return self.net * 2


NUMBER = UUID("0190a000-0000-7000-8000-000000000001")
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def succeeded(app: Treadle) -> Job:
    """The one job of this app, run."""
    [job] = run_until_idle(app)
    assert job.state is State.SUCCEEDED, job.error
    return job


# ------------------------------------------------------------------------------------ the shapes of handlers


def test_a_plain_function_is_a_task(app: Treadle) -> None:
    @app.task
    def add(a: int, b: int) -> int:
        return a + b

    add.enqueue(1, b=2)
    assert succeeded(app).result == 3


def test_a_coroutine_function_is_a_task(app: Treadle) -> None:
    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    add.enqueue(1, b=2)
    assert succeeded(app).result == 3


def test_an_object_with_an_async_call_is_a_task(app: Treadle) -> None:
    class Adder:
        async def __call__(self, a: int, b: int) -> int:
            return a + b

    task = app.register("add", Adder())
    task.enqueue(1, 2)
    assert task.is_async
    assert succeeded(app).result == 3


def test_a_partial_of_a_coroutine_function_runs_on_the_loop(app: Treadle) -> None:
    async def add(a: int, b: int) -> int:
        return a + b

    task = app.register("add", functools.partial(add, b=5))
    assert task.is_async
    task.enqueue(1)
    assert succeeded(app).result == 6


@any_store
@pytest.mark.covers("003-S15.a")
def test_a_class_with_payload_model_and_handle_is_called_with_its_model(app: Treadle) -> None:
    seen: list[object] = []

    class TakeOrder:
        @classmethod
        def payload_model(cls) -> type[BaseModel]:
            return Order

        def handle(self, payload: Order) -> None:
            seen.append(payload)

    task = app.register("take_order", TakeOrder)
    order = Order(number=NUMBER, lines=[Line(article="tea")])
    task.enqueue(order)
    assert succeeded(app).result is None
    assert seen == [order]


def test_the_model_of_a_class_counts_even_where_handle_is_not_annotated(app: Treadle) -> None:
    class TakeOrder:
        @classmethod
        def payload_model(cls) -> type[BaseModel]:
            return Order

        async def handle(self, payload):
            return payload.lines[0].article

    app.register("take_order", TakeOrder)
    app.enqueue("take_order", {"number": str(NUMBER), "lines": [{"article": "tea"}]})
    assert succeeded(app).result == "tea"
    with pytest.raises(InvalidPayload, match="number"):
        app.enqueue("take_order", {"lines": []})


def test_the_model_of_a_class_may_be_a_plain_attribute(app: Treadle) -> None:
    class TakeOrder:
        payload_model = Order

        def handle(self, payload: Order) -> str:
            return str(payload.number)

    app.register("take_order", TakeOrder).enqueue(Order(number=NUMBER, lines=[]))
    assert succeeded(app).result == str(NUMBER)


@pytest.mark.parametrize("kind", [staticmethod, classmethod])
def test_handle_may_be_a_static_or_a_class_method(app: Treadle, kind: type) -> None:
    def static(n: int) -> int:
        return n + 1

    def of_the_class(cls: type, n: int) -> int:
        return n + 1

    handle = staticmethod(static) if kind is staticmethod else classmethod(of_the_class)
    app.register("more", type("More", (), {"handle": handle})).enqueue(3)
    assert succeeded(app).result == 4


def test_a_class_without_payload_model_takes_its_payload_from_handle(app: Treadle) -> None:
    @app.task(name="greet")
    class Greet:
        def handle(self, name: str, *, always_audited: bool = False) -> str:
            return name.upper() if always_audited else name

    Greet.enqueue("Ada", always_audited=True)
    assert succeeded(app).result == "ADA"


def test_a_class_makes_a_new_handler_object_for_each_job(app: Treadle) -> None:
    @app.task
    class Count:
        def __init__(self) -> None:
            self.calls = 0

        def handle(self) -> int:
            self.calls += 1
            return self.calls

    Count.enqueue_many([(), ()])
    assert [job.result for job in run_until_idle(app)] == [1, 1]


def test_a_class_without_handle_is_refused_with_its_name(app: Treadle) -> None:
    @app.task
    class Nothing:
        pass

    with pytest.raises(ConfigError, match=r"Nothing.*handle"):
        Nothing.enqueue()


@any_store
@pytest.mark.covers("000-R01.a", "000-AC-27.a", "000-AC-27.b")
def test_a_callable_registered_by_name_is_given_the_job_as_a_dict(app: Treadle) -> None:
    seen: list[dict] = []

    async def handle_email_processing(job: dict) -> dict:
        seen.append(job)
        return {"output_preview": "ok"}

    app.register("email_processing", handle_email_processing)
    stored = app.enqueue("email_processing", {"connection_id": "c-1"}, tenant="ada")
    assert succeeded(app).result == {"output_preview": "ok"}
    [job] = seen
    assert job["id"] == stored.id
    assert job["job_type"] == job["task"] == "email_processing"
    assert job["input"] == job["payload"] == {"connection_id": "c-1"}
    assert job["user_id"] == job["tenant"] == "ada"
    assert job["status"] == "running"
    assert job["attempt"] == 1


@any_store
@pytest.mark.covers("002-B1.a")
def test_a_handler_of_context_and_payload_is_called_with_both(app: Treadle) -> None:
    seen: list[tuple[str, object]] = []

    def prune(ctx: Context, payload: Any) -> None:
        seen.append((ctx.job.id, payload))

    app.register("webhook_delivery_prune", prune)
    job = app.enqueue("webhook_delivery_prune", {"retention_hours": 168})
    succeeded(app)
    assert seen == [(job.id, {"retention_hours": 168})]


@any_store
@pytest.mark.covers("002-B1.b", "000-R08.c")
def test_the_failure_a_handler_reports_by_raising_fails_the_job(app: Treadle) -> None:
    def prune(ctx: Context, payload: Any) -> None:
        raise RuntimeError("no such table")

    app.register("prune", prune, retry=Retry(max_attempts=1))
    app.enqueue("prune", {})
    [job] = run_until_idle(app)
    assert (job.state, job.error.message) == (State.FAILED, "no such table")


def test_the_context_may_stand_anywhere_in_the_signature(app: Treadle) -> None:
    @app.task
    def f(a: int, ctx: Context, *, b: int) -> int:
        return a + b + ctx.attempt

    f.enqueue(1, b=2)
    assert succeeded(app).result == 4


def test_one_model_parameter_is_the_whole_payload(app: Treadle) -> None:
    @app.task
    def take(order: Order) -> str:
        assert isinstance(order, Order)
        return str(order.number)

    job = take.enqueue(Order(number=NUMBER, lines=[]))
    assert job.payload == {"number": str(NUMBER), "lines": []}
    assert succeeded(app).result == str(NUMBER)


def test_a_task_can_still_be_called_as_the_function_it_is(app: Treadle) -> None:
    @app.task(queue="mail")
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    assert add(1, 2) == 3
    assert (add.name, add.__name__, add.__doc__) == ("add", "add", "Add.")
    assert app.count()[State.PENDING] == 0


@any_store
@pytest.mark.covers("004-T13.c")
def test_a_running_handler_can_enqueue_further_jobs(app: Treadle) -> None:
    @app.task
    def second(n: int) -> int:
        return n

    @app.task
    async def first() -> None:
        second.enqueue(1)
        await second.aenqueue(2)

    first.enqueue()
    assert [job.task for job in run_until_idle(app)] == ["first", "second", "second"]


# ---------------------------------------------------------------------------------------- values and types


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Point, Point(1, 2)),
        (datetime, NOON),
        (date, date(2026, 3, 1)),
        (timedelta, timedelta(hours=1, microseconds=1)),
        (UUID, NUMBER),
        (Decimal, Decimal("1.10")),
        (Colour, Colour.RED),
        (int | None, None),
        (list[Point], [Point(1), Point(2)]),
        (dict[str, Decimal], {"a": Decimal("0.1")}),
        (tuple[int, str], (1, "a")),
        (set[int], {1, 2}),
        (Order, Order(number=NUMBER, lines=[Line(article="tea", count=3)])),
        (str, "Grüße 🌍 \\u0000 \"'"),
        (int, 2**70),
        (float, 0.1),
        (Any, {"nested": [1, None, True]}),
    ],
    ids=lambda value: getattr(value, "__name__", None) or str(value)[:20],
)
def test_a_value_arrives_at_the_handler_as_it_was_given(app: Treadle, annotation: Any, value: Any) -> None:
    seen: list[object] = []

    def take(value, other: int = 0):
        seen.append(value)

    take.__annotations__["value"] = annotation
    app.register("take", take).enqueue(value)
    succeeded(app)
    assert seen == [value]
    assert type(seen[0]) is type(value)


def test_defaults_are_the_handlers_own_when_it_runs(make_app: Callable[..., Treadle]) -> None:
    before, after = make_app(), make_app()

    @before.task(name="greet")
    def old(name: str, greeting: str = "hello") -> str:
        return f"{greeting} {name}"

    @after.task(name="greet")
    def new(name: str, greeting: str = "good day") -> str:
        return f"{greeting} {name}"

    job = old.enqueue("Ada")
    assert job.payload == {"name": "Ada"}
    assert succeeded(after).result == "good day Ada"


def test_text_that_reads_as_a_number_becomes_one_when_enqueued(app: Treadle) -> None:
    @app.task
    def double(n: int) -> int:
        return n * 2

    assert double.enqueue("21").payload == {"n": 21}
    assert succeeded(app).result == 42


def test_a_model_with_aliases_comes_back_at_run(app: Treadle) -> None:
    @app.task
    def greet(user: Renamed) -> int:
        return user.user_id

    greet.enqueue(Renamed(userId=7))
    assert succeeded(app).result == 7


def test_a_nested_model_with_aliases_comes_back_at_run(app: Treadle) -> None:
    @app.task
    def greet(user: Renamed, times: int) -> int:
        return user.user_id * times

    greet.enqueue(Renamed(userId=7), 2)
    assert succeeded(app).result == 14


def test_a_model_with_a_computed_field_comes_back_at_run(app: Treadle) -> None:
    @app.task
    def bill(order: WithTotal) -> int:
        return order.gross

    bill.enqueue(WithTotal(net=5))
    assert succeeded(app).result == 10


def test_a_secret_arrives_and_is_never_stored_as_asterisks(app: Treadle) -> None:
    seen: list[str] = []

    @app.task
    def log_in(password: SecretStr, user: str = "ada") -> None:
        seen.append(password.get_secret_value())

    assert log_in.enqueue(SecretStr("hush")).payload == {"password": "hush"}
    run_until_idle(app)
    assert seen == ["hush"]


# ---------------------------------------------------------------------------------------- what is refused


@pytest.fixture
def transfer(app: Treadle) -> Task:
    @app.task
    def transfer(amount: int, to: str, *, urgent: bool = False) -> None: ...

    return transfer


@any_store
@pytest.mark.covers("003-S16.a")
@pytest.mark.parametrize(
    ("args", "kwargs", "named"),
    [
        (("lots", "Ada"), {}, "amount"),
        ((1,), {}, "to"),
        ((1, "Ada"), {"urgent": "perhaps"}, "urgent"),
        ((1, "Ada"), {"colour": "red"}, "colour"),
        ((1, "Ada", True), {}, "too many positional"),
        ((1, "Ada"), {"to": "Bob"}, "to"),
        ((1, object()), {}, "to"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_by_name_and_nothing_is_stored(
    app: Treadle, transfer: Task, args: tuple, kwargs: dict, named: str
) -> None:
    with pytest.raises(InvalidPayload, match=named) as refused:
        transfer.enqueue(*args, **kwargs)
    assert "transfer" in str(refused.value)
    assert set(app.count().values()) == {0}


@pytest.mark.parametrize(
    ("payload", "named"),
    [({"amount": 1, "to": "Ada", "zebra": 1}, "zebra"), ({"amount": 1}, "to"), ([1, 2], "payload"), (7, "payload")],
)
def test_a_payload_given_as_data_is_checked_too(app: Treadle, transfer: Task, payload: object, named: str) -> None:
    with pytest.raises(InvalidPayload, match=named):
        app.enqueue("transfer", payload)
    assert set(app.count().values()) == {0}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_none_is_refused_at_enqueue(app: Treadle, value: float) -> None:
    @app.task
    def take(value: float, more: int = 0) -> None: ...

    with pytest.raises(InvalidPayload, match="JSON"):
        take.enqueue(value)
    assert set(app.count().values()) == {0}


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (float("nan"), "JSON"),
        (float("-inf"), "JSON"),
        ("a\0b", "NUL"),
        ("half \ud800", "surrogate"),
        (b"\xff\xfe", "JSON"),
        ("x" * (1024 * 1024), "limit"),
        (object(), "JSON"),
    ],
    ids=["nan", "infinity", "nul", "surrogate", "bytes", "too long", "object"],
)
def test_a_value_no_store_takes_is_refused_at_enqueue(app: Treadle, value: object, problem: str) -> None:
    @app.task
    def take(value: Any, more: int = 0) -> None: ...

    with pytest.raises(InvalidPayload, match=problem):
        take.enqueue(value)
    assert set(app.count().values()) == {0}


def test_a_payload_of_exactly_the_limit_is_taken(app: Treadle) -> None:
    @app.task
    def take(payload: str) -> int:
        return len(payload)

    take.enqueue("x" * (1024 * 1024 - 2))  # the quotes count
    assert succeeded(app).result == 1024 * 1024 - 2


@pytest.mark.parametrize("shape", ["positional", "keyword", "positional-only"])
def test_parameters_that_json_cannot_fill_are_refused_by_name(app: Treadle, shape: str) -> None:
    def positional(*things: int) -> None: ...
    def keyword(**things: int) -> None: ...
    def only(things: int, /) -> None: ...

    handler = {"positional": positional, "keyword": keyword, "positional-only": only}[shape]
    with pytest.raises(ConfigError, match=r"'take'.*things"):
        app.register("take", handler)
    with pytest.raises(ConfigError, match=r"'take'.*things"):
        app.register("take", functools.partial(handler)).enqueue(1)


@pytest.mark.parametrize("annotation", ["NoSuchType", "datetime.missing", "list[", "int ||"])
def test_an_annotation_that_cannot_be_resolved_is_a_clear_error(app: Treadle, annotation: str) -> None:
    def take(value): ...

    take.__annotations__["value"] = annotation
    task = app.register("take", take)
    with pytest.raises(ConfigError, match=r"'take'.*annotation"):
        task.enqueue(1)


def test_an_annotation_without_json_form_is_a_clear_error(app: Treadle) -> None:
    @app.task
    def take(connection: socket.socket) -> None: ...

    with pytest.raises(ConfigError, match=r"JSON") as refused:
        take.enqueue(1)
    assert "take" in str(refused.value)


# -------------------------------------------------------------------------------- rows older than the code


@any_store
@pytest.mark.covers("003-S16.b")
@pytest.mark.parametrize("attempts", [5, 1])
def test_a_stored_payload_that_no_longer_fits_ends_the_job_without_a_retry(
    make_app: Callable[..., Treadle], attempts: int
) -> None:
    old, new = make_app(), make_app()
    ran: list[object] = []

    @old.task(name="grow", retry=Retry(max_attempts=attempts))
    def grow_before(size: str) -> None: ...

    @new.task(name="grow")
    def grow_after(size: int) -> None:
        ran.append(size)

    grow_before.enqueue("large")
    [job] = run_until_idle(new)
    assert (job.state, job.reason) == (State.FAILED, Reason.INVALID_PAYLOAD)
    assert "size" in job.error.message
    assert job.attempt == 1
    assert not ran


def test_a_key_that_the_handler_no_longer_knows_ends_the_job(make_app: Callable[..., Treadle]) -> None:
    old, new = make_app(), make_app()

    @old.task(name="grow")
    def grow_before(size: int, colour: str) -> None: ...

    @new.task(name="grow")
    def grow_after(size: int) -> None: ...

    grow_before.enqueue(1, "red")
    [job] = run_until_idle(new)
    assert (job.state, job.reason) == (State.FAILED, Reason.INVALID_PAYLOAD)
    assert "colour" in job.error.message


def test_a_validator_that_raises_something_of_its_own_ends_the_job_too(make_app: Callable[..., Treadle]) -> None:
    class Fragile(BaseModel):
        size: int

        def model_post_init(self, context: object) -> None:
            if self.size > 10:
                raise ZeroDivisionError("too large")

    old, new = make_app(), make_app()

    @new.task(name="grow")
    def grow(size: Fragile) -> None: ...

    old.enqueue("grow", {"size": 11}, checked=False)
    [job] = run_until_idle(new)
    assert (job.state, job.reason) == (State.FAILED, Reason.INVALID_PAYLOAD)
    assert job.error.type == "ZeroDivisionError"


class Greeting(BaseModel):
    name: str


def test_a_whole_model_may_be_annotated(app: Treadle) -> None:
    def greet(greeting: Annotated[Greeting, AfterValidator(lambda given: given)]) -> None: ...

    assert app.register("greet", greet).enqueue(Greeting(name="Ada")).payload == {"name": "Ada"}


def test_an_error_shows_the_types_of_a_task_by_their_names_and_without_validators(app: Treadle) -> None:
    def small(given: str) -> str:
        if given.isupper():
            raise ValueError("write it small")
        return given

    Name = Annotated[str, AfterValidator(small)]  # noqa: N806

    def greet(ctx: Context, names: list[Name], kind: Literal["a.b"] = "a.b", *, by: Greeting | None = None) -> None: ...

    task = app.register("greet", greet)
    with pytest.raises(InvalidPayload) as refused:
        task.enqueue(["ada", "BOB"])
    assert refused.value.problem == (
        "does not fit task greet(names: list[str], kind: Literal['a.b'] = 'a.b', *, by: Greeting | None = None): "
        "names.1: write it small"
    )
