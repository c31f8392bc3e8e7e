"""The statements themselves: one placeholder each, so that every driver's parameter style can be put in its place."""

from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.making import a_job
from treadle.engines import connect
from treadle.engines.postgres import enqueue as postgres_enqueue
from treadle.engines.postgres import keys as postgres_keys
from treadle.engines.postgres import settle as postgres_settle
from treadle.engines.scripts import Script
from treadle.engines.sqlite import enqueue, keys, settle
from treadle.model import Change, Job, Scope, State, lifecycle
from treadle.model.lifecycle import Succeeded
from treadle.transactions.joined import POSTGRES, SQLITE, formatted

NOW = datetime(2026, 1, 1, tzinfo=UTC)
FRAGMENTS = {
    "EVENT",
    "FENCE",
    "IDS",
    "JOB",
    "KEY_TIMEOUT",
    "LOCK_TIMEOUT",
    "NOTED",
    "SETTLED",
    "SETTLE_COMMENTED",
}  # parts of statements
STORES = pytest.mark.parametrize(
    ("scripts", "placeholder"),
    [((postgres_enqueue, postgres_keys, postgres_settle), "$1"), ((enqueue, keys, settle), "?")],
    ids=["postgres", "sqlite"],
)


def statements(scripts: tuple[ModuleType, ...]) -> dict[str, str]:
    """Every statement of these modules, by name."""
    return {
        name: value
        for module in scripts
        for name, value in vars(module).items()
        if name.isupper() and not name.startswith("_") and isinstance(value, str) and name not in FRAGMENTS
    }


@STORES
def test_every_statement_has_its_placeholder_exactly_once(scripts: tuple[ModuleType, ...], placeholder: str) -> None:
    found = statements(scripts)
    assert len(found) >= 10
    assert {name: sql.count(placeholder) for name, sql in found.items()} == dict.fromkeys(found, 1)


@STORES
def test_no_statement_holds_another_drivers_placeholder(scripts: tuple[ModuleType, ...], placeholder: str) -> None:
    strange = {"$1", "?", "%s", "%("} - {placeholder}
    assert [name for name, sql in statements(scripts).items() if any(mark in sql for mark in strange)] == []


@STORES
def test_a_statement_for_a_driver_of_formats_holds_nothing_else_to_fill_in(
    scripts: tuple[ModuleType, ...], placeholder: str
) -> None:
    store = POSTGRES if placeholder == "$1" else SQLITE
    for sql in [*statements(scripts).values(), f"select {placeholder} like '10%' and '%s' <> '%(x)s'"]:
        assert formatted(sql, store) % "VALUE" == sql.replace(placeholder, "VALUE")


@pytest.mark.parametrize(("url", "placeholder"), [("postgresql://nowhere/x", "$1"), ("sqlite:///x.db", "?")])
def test_whatever_a_script_asks_has_its_placeholder_exactly_once(url: str, placeholder: str) -> None:
    """Also what is put together on the way, with the schema's name in it."""
    engine = connect(url, clock=lambda: NOW, audit_all=True)
    pending = a_job(NOW, key="k", key_scope=Scope.PENDING)
    running = pending.evolve(state=State.RUNNING, lease_token="t", lease_until=NOW, revision=1)
    over = running.evolve(state=State.FAILED, finished_at=NOW)
    changes: list[Change] = [
        lifecycle.settle(running, Succeeded("1"), NOW),
        lifecycle.cancel(running, NOW, actor="a"),
        lifecycle.cancel(pending, NOW, actor="a"),
        lifecycle.retry(over, NOW, actor="a"),
        lifecycle.replace(pending, a_job(NOW), NOW, actor="a"),
        lifecycle.crash(running, NOW, actor="a"),
    ]
    scripts: list[Script[object]] = [engine.enqueue_script([pending, a_job(NOW)])]
    scripts += [engine.settle_script(change) for change in changes]
    asked = [sql for script in scripts for sql in _asked(script, pending)]
    assert len(asked) >= 1.5 * len(scripts)
    assert {sql.count(placeholder) for sql in asked} == {1}
    assert not [sql for sql in asked if "@" in sql]
    engine.close()


def _asked(script: Script[object], job: Job) -> list[str]:
    """What a script asks of a store in which nothing is found."""
    asked = []
    try:
        sql, text = next(script)
        while True:
            asked.append(sql)
            assert isinstance(text, str)
            here = "pragma_database_list" in sql  # which file is this
            file = (str(Path("x.db").resolve()), 1)
            rows = [(job.id, job.id)] if "keys k" in sql else []
            if "insert into" in sql and "created_at" in sql:
                rows = [(job.id, job.created_at, job.due_at, None)]  # as if it were new
            if ".add_jobs(" in sql:
                rows = [(f'{{"now": "{job.created_at.isoformat()}", "others": {{"{job.id}": "{job.id}"}}}}',)]
            if "returning id, revision" in sql:
                rows = [(job.id, 1)]  # as if it were written
            sql, text = script.send([file] if here else rows)
    except StopIteration:
        return asked
