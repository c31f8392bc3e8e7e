"""A task that runs on a schedule and needs arguments must say which: it is refused where it is written."""

from dataclasses import dataclass

import pytest
from pydantic import BaseModel

from treadle import ConfigError, Context, Treadle


class Order(BaseModel):
    number: int


class Wishes(BaseModel):
    number: int = 1


def test_a_scheduled_task_without_the_payload_that_it_needs_is_refused_at_its_decoration(app: Treadle) -> None:
    with pytest.raises(ConfigError) as refused:

        @app.task(cron="@daily")
        def z2(x: int, y: int = 1) -> None: ...

    assert str(refused.value) == (
        "schedule 'z2': task 'z2' needs x, and no payload is given; write payload={'x': …}, give the parameter a "
        "default, or for_each= rows that have it"
    )
    assert "z2" not in app.tasks
    assert app.declared() == []


def test_so_is_a_model_a_class_and_a_declaration_of_a_task(app: Treadle) -> None:
    @app.task
    def known(x: int) -> None: ...

    with pytest.raises(ConfigError, match="task 'known' needs x"):
        app.declare("n", known, cron="@daily")
    with pytest.raises(ConfigError, match=r"task .of_model. needs number, .* write payload={.number.: …}"):

        @app.task(every="1h")
        def of_model(order: Order) -> None: ...

    with pytest.raises(ConfigError, match="task 'Handler' needs number"):

        @app.task(every="1h")
        class Handler:
            def handle(self, payload: Order) -> None: ...


def test_one_that_needs_nothing_or_has_what_it_needs_is_taken(app: Treadle) -> None:
    @app.task(every="1h")
    def nothing() -> None: ...

    @app.task(every="1h")
    def context(ctx: Context) -> None: ...

    @app.task(every="1h")
    def quoted(ctx: "Context") -> None: ...

    @app.task(every="1h")
    def defaults(x: int = 1) -> None: ...

    @app.task(every="1h")
    def model_of_defaults(wishes: Wishes) -> None: ...

    @app.task(every="1h")
    def plain(job) -> None: ...  # type: ignore[no-untyped-def]

    @app.task(every="1h", payload={"x": 1})
    def given(x: int) -> None: ...

    @app.task(every="1h", for_each=lambda: [{"x": 1}])
    def rows(x: int) -> None: ...

    assert len(app.declared()) == 8


def test_an_annotation_that_is_defined_further_down_is_left_to_the_worker(app: Treadle) -> None:
    @app.task(every="1h")
    def later(order: "Later") -> None: ...

    @dataclass
    class Later:
        number: int

    assert "later" in app.tasks
