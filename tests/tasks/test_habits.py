"""What people write out of habit, or by mistake: each is answered with what to write instead."""

import importlib
import linecache
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, TypedDict

import pytest

from treadle import ConfigError, InvalidJob, InvalidPayload, Retry, State, Task, Treadle
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


# ------------------------------------------------------------------------------------------------------ odd options


def test_odd_options_are_refused_with_what_to_write(app: Treadle, add: Task[..., Any]) -> None:
    for act, message in [
        (lambda: app.register("x", print, retry=3), r"retry: 3 is not a retry policy; write Retry\(max_attempts=3\)"),
        (lambda: app.register("x", len, priority=True), "priority: True must be a whole number"),
        (lambda: app.register("x", len, priority="high"), "priority: 'high' must be a whole number"),
        (lambda: add.using(priority=True).enqueue(1, 2), "priority: True must be a whole number"),
        (lambda: Retry(max_attempts=-1), "max_attempts: -1 must be from 1"),
        (lambda: add.using(unique="ever").enqueue(1, 2), "unique: 'ever' means nothing without a key; add key=… to"),
        (lambda: app.enqueue("add", {"a": 1, "b": 2}, unique="window"), "unique: 'window' means nothing without a key"),
    ]:
        with pytest.raises(InvalidJob, match=message):
            act()
    assert app.count()[State.PENDING] == 0


def test_a_task_may_say_how_its_keys_work_before_it_has_one(app: Treadle) -> None:
    task = app.register("x", lambda: None, unique="ever")
    task.enqueue()
    assert task.using(key="k").enqueue() == task.using(unique="ever").using(key="k").enqueue()


# ------------------------------------------------------------------------------------------------- defined anew


def run_cell(source: str, number: int, names: dict[str, Any]) -> None:
    """Run a cell as a notebook does: compiled under a name of its own, its text kept for tracebacks."""
    name = f"<ipython-input-{number}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    exec(compile(source, name, "exec"), names)  # noqa: S102


def test_a_cell_of_a_notebook_may_run_again(app: Treadle) -> None:
    names: dict[str, Any] = {"app": app, "__name__": "__main__"}
    run_cell("@app.task\ndef send(x: int) -> int:\n    return x\n", 1, names)
    run_cell("@app.task(queue='mail')\ndef send(x: int, y: int) -> int:\n    return x + y\n", 2, names)
    job = names["send"].enqueue(1, 2)
    assert (job.queue, job.payload) == ("mail", {"x": 1, "y": 2})
    app.run_worker(until_idle=True, queues=["mail"])
    assert app.get(job.id).result == 3


def test_a_module_may_be_reloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "queue_of_mine.py").write_text("from treadle import Treadle\napp = Treadle('sqlite:///:memory:')\n")
    source = "from queue_of_mine import app\n\n@app.task\ndef send(x):\n    return {}\n\n@app.task\nclass Other:\n"
    source += "    def handle(self, payload):\n        pass\n"
    module = tmp_path / "tasks_of_mine.py"
    module.write_text(source.format(1))
    tasks = importlib.import_module("tasks_of_mine")
    module.write_text("# changed\n" + source.format(22))
    tasks = importlib.reload(tasks)
    assert tasks.app.tasks["send"] is tasks.send
    assert tasks.send(5) == 22
    assert tasks.app.tasks["Other"] is tasks.Other
    tasks.app.close()


def test_two_functions_of_one_name_in_one_file_are_a_slip(app: Treadle) -> None:
    names: dict[str, Any] = {"app": app, "__name__": "__main__"}
    one = "@app.task\nasync def send(x):\n    return {}\n\n"
    with pytest.raises(ConfigError, match="task 'send' is registered twice"):
        run_cell(one.format(1) + one.format(2), 3, names)


def test_another_function_under_the_same_name_is_refused(app: Treadle) -> None:
    names: dict[str, Any] = {"app": app, "__name__": "elsewhere"}
    run_cell("def send(x): ...\n", 4, names)
    run_cell("def other(x): ...\n", 5, names)
    app.register("send", names["send"])
    for handler in (names["other"], lambda x: x, gathers.__class__):
        with pytest.raises(ConfigError, match="task 'send' is registered twice"):
            app.register("send", handler)
    app.register("nameless", lambda: 1)
    with pytest.raises(ConfigError, match="task 'nameless' is registered twice"):
        app.register("nameless", lambda: 2)


class Point(TypedDict):
    x: int


def test_a_typed_dict_works_or_says_which_one_does(app: Treadle) -> None:
    def move(to: Point) -> None: ...

    try:
        assert app.task(move).enqueue({"x": 1}).payload == {"to": {"x": 1}}
    except ConfigError as error:  # Pydantic takes that of typing_extensions only, before Python 3.12
        assert "task 'move': parameter to: " in str(error)  # noqa: PT017
        assert "typing_extensions.TypedDict" in str(error)  # noqa: PT017
