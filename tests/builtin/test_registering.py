"""Built-in tasks are registered by a program: it declares their schedules, and each name once."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from treadle import ConfigError, Treadle
from treadle.builtin import email_send, notify_send, shell_run, sql_cleanup, webhook_deliver
from treadle.builtin.email_send import Smtp
from treadle.builtin.sql_cleanup import OldRows
from treadle.testing import run_until_idle

PROGRAM = """
from treadle.builtin import sql_cleanup
from treadle.builtin.sql_cleanup import OldRows

def set_up(app, name):
    sql_cleanup.register(app, OldRows("sessions", "expires_at"), name=name, cron="@daily")
"""
SECRET = "whsec_" + "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLwSw"

REGISTER: Mapping[str, Callable[[Treadle], object]] = {
    "email.send": lambda app: email_send.register(app, Smtp("mail.example.org", sender="shop@example.org")),
    "notify.send": lambda app: notify_send.register(app, {"ops": "json://localhost"}),
    "shell.run": lambda app: shell_run.register(app, {"greet": ["echo", "hello"]}),
    "sql.cleanup": lambda app: sql_cleanup.register(app, OldRows("sessions", "expires_at")),
    "webhook.deliver": lambda app: webhook_deliver.register(app, secrets={"default": SECRET}),
}


@pytest.mark.parametrize("name", REGISTER)
def test_a_second_one_of_the_same_name_is_refused(app: Treadle, name: str) -> None:
    REGISTER[name](app)
    first = app.tasks[name]
    with pytest.raises(ConfigError, match=rf"task '{name}' is registered twice; give one of them another name"):
        REGISTER[name](app)
    assert app.tasks[name] is first


def program(name: str) -> Any:
    """A module of this name that registers a clean-up."""
    module: dict[str, Any] = {"__name__": name}
    exec(PROGRAM, module)  # noqa: S102
    return module["set_up"]


def test_a_schedule_of_a_built_in_task_belongs_to_the_program_that_registers_it(app: Treadle) -> None:
    program("shop.cleanups")(app, "sessions")
    assert [schedule.declared_in for schedule in app.declared()] == ["shop.cleanups"]


def test_two_programs_on_one_store_leave_each_others_built_in_schedules_on(make_app: Callable[..., Treadle]) -> None:
    for name in ("shop", "blog"):
        app = make_app()
        program(name)(app, f"{name}_sessions")
        run_until_idle(app)
    assert {one.name: one.enabled for one in app.schedules.list()} == {"shop_sessions": True, "blog_sessions": True}
