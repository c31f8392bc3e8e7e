"""What people write out of habit, or by mistake: each is answered with what to write instead."""

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any, TypedDict

import pytest

from treadle import ConfigError, InvalidJob, InvalidPayload, State, Task, Treadle
from treadle.tasks.task import ELSEWHERE


@pytest.fixture
def app() -> Iterator[Treadle]:
    with Treadle("sqlite:///:memory:") as app:
        yield app


@pytest.fixture
def add(app: Treadle) -> Task[..., Any]:
    return app.register("add", lambda a, b: a + b)


@pytest.mark.parametrize("name", sorted(ELSEWHERE))
def test_the_words_of_other_libraries_are_answered_with_ours(add: Task[..., Any], name: str) -> None:
    with pytest.raises(AttributeError, match=rf"task 'add' has no attribute '{name}'; write add\.\w+\("):
        getattr(add, name)


def test_an_attribute_that_nobody_has_gets_no_hint(add: Task[..., Any]) -> None:
    assert not hasattr(add, "nonsense")
    with pytest.raises(AttributeError, match=r"task 'add' has no attribute 'nonsense'$"):
        add.nonsense  # noqa: B018


def test_a_lambda_has_no_name_for_a_task(app: Treadle) -> None:
    with pytest.raises(ConfigError, match=r"app\.register\('name'"):
        app.task(lambda x: x)


def test_a_method_is_refused_when_it_is_decorated(app: Treadle) -> None:
    with pytest.raises(ConfigError, match=r"Service\.send is a method.*write a function"):

        class Service:
            @app.task
            def send(self, x: int) -> None: ...

    def free(self: int) -> None: ...

    assert app.task(free).name == "free", "a parameter may be called self"


def gathers(*args: int) -> None: ...


def gathers_names(**named: int) -> None: ...


def by_place(a: int, /) -> None: ...


@pytest.mark.parametrize("handler", [gathers, gathers_names, by_place])
def test_parameters_that_json_cannot_fill_are_refused_when_the_task_is_declared(app: Treadle, handler: Any) -> None:
    with pytest.raises(ConfigError, match=rf"task '{handler.__name__}'.*name each parameter"):
        app.task(handler)


@pytest.mark.parametrize("calls", ["xy", b"xy", 5, None, {"a": 1, "b": 2}])
def test_many_calls_are_a_list_of_them(app: Treadle, add: Task[..., Any], calls: Any) -> None:
    with pytest.raises(InvalidPayload, match="must be a list of calls"):
        add.enqueue_many(calls)
    assert app.count()[State.PENDING] == 0


@pytest.mark.parametrize("call", ["xy", b"xy", 5, None])
def test_a_text_is_not_taken_for_its_letters(app: Treadle, add: Task[..., Any], call: Any) -> None:
    with pytest.raises(InvalidPayload, match=r"call 1: payload.*is not a call; write a tuple such as"):
        add.enqueue_many([(1, 2), call])
    assert app.count()[State.PENDING] == 0


def test_a_list_of_arguments_is_a_call(add: Task[..., Any]) -> None:
    [receipt] = add.enqueue_many([[1, 2]])
    assert receipt.job.payload == {"a": 1, "b": 2}


def test_a_moment_before_the_first_year_is_refused(add: Task[..., Any]) -> None:
    early = datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14)))
    with pytest.raises(InvalidJob, match=r"run_after: .*between the years 1 and 9999"):
        add.using(run_after=early).enqueue(1, 2)


def test_operations_name_the_argument_that_is_wrong(app: Treadle, add: Task[..., Any]) -> None:
    job = add.enqueue(1, 2)
    for act, message in [
        (lambda: app.find(limit="a"), "limit: 'a' must be from 1"),
        (lambda: app.find(cursor=5), "cursor: 5 is not a valid cursor"),
        (lambda: app.cancel(job.id, reason=5), "reason: 5 must be text"),
        (lambda: app.enqueue(None), "task: None is not a valid task"),
    ]:
        with pytest.raises(InvalidJob, match=message):
            act()


class Point(TypedDict):
    x: int


def test_a_typed_dict_works_or_says_which_one_does(app: Treadle) -> None:
    def move(to: Point) -> None: ...

    try:
        assert app.task(move).enqueue({"x": 1}).payload == {"to": {"x": 1}}
    except ConfigError as error:  # Pydantic takes that of typing_extensions only, before Python 3.12
        assert "typing_extensions.TypedDict" in str(error)  # noqa: PT017
