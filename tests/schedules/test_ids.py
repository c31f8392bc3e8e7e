"""A schedule has an id of its own, and goes by it wherever it goes by its name."""

import re
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.marks import any_store, postgres_only
from treadle import Schedule, ScheduleNotFound, Treadle
from treadle.engines.records import row_from
from treadle.engines.sqlite import schema
from treadle.engines.sqlite.rows import micros
from treadle.engines.values import ScheduleFilter
from treadle.profiles import backend
from treadle.testing import FakeClock, run_until_idle

UUID = r"[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}"
NOBODY = "0a0b0c0d-0000-4000-8000-000000000000"


@any_store
@pytest.mark.covers("002-M3.a")
def test_an_id_is_kept_over_changes_and_another_one_after_a_delete(app: Treadle, clock: FakeClock) -> None:
    app.register("t", lambda: None)
    made = app.schedules.create("n", "t", every="1h")
    assert re.fullmatch(UUID, made.id)
    assert app.schedules.get("n") == made
    changed = app.schedules.update("n", every="2h")
    brought = app.schedules.upsert("n", "t", every="3h")
    assert changed.id == brought.id == app.schedules.disable("n").id == made.id
    app.schedules.delete("n")
    clock.advance(seconds=1e-6)
    again = app.schedules.create("n", "t", every="1h")
    assert again.id != made.id
    with pytest.raises(ScheduleNotFound):
        app.schedules.get(made.id)
    assert [event.kind for event in app.schedules.events(again.id)] == [
        "created", "changed", "changed", "disabled", "deleted", "created",
    ]  # fmt: skip


@any_store
def test_every_act_takes_the_id_in_place_of_the_name(app: Treadle) -> None:
    app.register("t", lambda: None)
    made, other = (app.schedules.create(name, "t", every="1h") for name in ("n", "other"))
    assert app.schedules.get(made.id.upper()) == made
    assert app.schedules.disable(made.id).enabled is False
    assert app.schedules.enable(made.id).enabled is True
    assert app.schedules.update(made.id, every="2h").every == 7200
    assert len(app.schedules.preview(made.id, 2)) == 2
    assert app.schedules.run(made.id).schedule == "n"
    app.schedules.delete(made.id)
    assert list(app.schedules.list()) == [other]
    for act in (app.schedules.get, app.schedules.enable, app.schedules.delete, app.schedules.run):
        with pytest.raises(ScheduleNotFound, match=NOBODY):
            act(NOBODY)


@any_store
def test_an_id_wins_over_a_name_that_looks_like_one(app: Treadle) -> None:
    app.register("t", lambda: None)
    made = app.schedules.create("n", "t", every="1h")
    app.schedules.create(made.id, "t", every="2h")
    free = app.schedules.create(NOBODY, "t", every="2h")
    assert app.schedules.get(made.id) == made
    assert app.schedules.get(NOBODY) == free


@any_store
def test_an_id_leads_to_any_tenants_schedule_but_a_tenant_only_to_its_own(app: Treadle) -> None:
    app.register("t", lambda: None)
    made = app.schedules.create("n", "t", every="1h", tenant="acme")
    assert app.schedules.get(made.id) == app.tenant("acme").schedules.get(made.id) == made
    for schedules in (app.tenant("globex").schedules, app.tenant("default").schedules):
        with pytest.raises(ScheduleNotFound):
            schedules.get(made.id)
        with pytest.raises(ScheduleNotFound):
            schedules.delete(made.id)
    with pytest.raises(ScheduleNotFound):
        app.schedules.get(made.id, tenant="default")
    assert app.schedules.disable(made.id).tenant == "acme"


@any_store
def test_a_schedule_that_code_declares_gets_an_id_with_its_first_worker_and_keeps_it(
    make_app: Callable[..., Treadle],
) -> None:
    for every in ("1h", "2h"):
        app = make_app()
        app.declare("n", app.register("t", lambda: None), every=every)
        run_until_idle(app)
    [stored] = app.schedules.list()
    assert stored.own_id is not None
    first = app.schedules.events("n")[0]
    assert (stored.every, first.kind) == (7200, "created")


@any_store
def test_a_schedule_that_an_older_process_made_has_an_id_that_leads_to_it_and_stays(
    app: Treadle, clock: FakeClock
) -> None:
    app.register("t", lambda: None)
    for name in ("n", "other"):
        app.engine.save(Schedule(name, "t", clock.now(), every=60.0, next_at=clock.now()), before=None)
    old = app.schedules.get("n")
    assert app.schedules.get(old.id) == old
    assert app.schedules.update(old.id, every="2h").id == old.id
    app.schedules.delete(old.id)
    clock.advance(seconds=1)
    assert app.schedules.create("n", "t", every="1h").id != old.id


@any_store
def test_an_id_stays_though_an_older_process_writes_the_schedule_without_it(app: Treadle) -> None:
    app.register("t", lambda: None)
    made = app.schedules.create("n", "t", every="1h")
    app.engine.save(made.evolve(own_id=None, revision=made.revision + 1), before=made)
    assert app.schedules.get("n").id == made.id
    assert app.schedules.get(made.id).name == "n"


@any_store
@pytest.mark.covers("002-M1.c")
def test_a_profile_prints_the_id_of_the_schedule_that_made_a_job(
    make_app: Callable[..., Treadle], clock: FakeClock
) -> None:
    app = make_app(profile=backend.PROFILE)
    task = app.register("t", lambda: None)
    made = app.schedules.create("n", "t", every="1h")
    plain, job = task.enqueue(), app.schedules.run("n")
    assert [view["schedule_id"] for view in app.views([plain, job])] == [None, made.id]
    assert app.view(job)["schedule_id"] == made.id
    app.schedules.delete("n")
    assert app.view(job)["schedule_id"] is None
    clock.advance(seconds=1)
    app.schedules.create("n", "t", every="1h")
    assert app.view(job)["schedule_id"] is None  # it has only the name of the one that made it


@any_store
def test_schedules_are_looked_up_only_for_a_profile_that_asks_and_each_once(
    make_app: Callable[..., Treadle], monkeypatch: pytest.MonkeyPatch
) -> None:
    app, plain = make_app(profile=backend.PROFILE), make_app()
    app.register("t", lambda: None)
    app.schedules.create("n", "t", every="1h")
    jobs = [app.schedules.run("n") for _ in range(3)]
    asked = []
    for one in (app, plain):
        read = one.engine.records
        monkeypatch.setattr(
            one.engine, "records", lambda *of, _read=read, **by: asked.append((*of, by)) or _read(*of, **by)
        )
    app.views(jobs)
    plain.views(jobs)
    assert [by for kind, by in asked if kind is Schedule] == [{"tenant": "default", "name": "n"}]


@postgres_only
def test_an_id_is_found_by_its_index_on_postgresql(app: Treadle) -> None:
    app.register("t", lambda: None)
    wanted = app.schedules.create("n", "t", every="1h")
    read = app.engine.session.read
    read(
        """
        insert into @.schedules (name, task, every) select 'n' || g, 't', 60 from generate_series(1, 2000) g
        returning 1
        """,
        [],
    )
    assert len({schedule.id for schedule in app.schedules.list()}) == 2001  # the table gives one to a plain insert
    plan = "\n".join(row[0] for row in read(f"explain select * from @.schedules where own_id = '{wanted.id}'", []))
    assert "schedules_own_id" in plan
    assert app.engine.find_schedules(ScheduleFilter(id=wanted.id), limit=1) == [wanted]


def test_schedules_of_an_older_file_are_given_an_id_each(tmp_path: Path, clock: FakeClock) -> None:
    path = tmp_path / "old.db"
    before = [step for step in schema.migrations() if step.name < "0010"]
    old = [Schedule(name, "t", clock.now(), every=60.0, next_at=clock.now()) for name in "abc"]
    with sqlite3.connect(path) as file:
        file.executescript(";\n".join([schema.LEDGER, *(f"{one.sql}\n{schema.ledger_entry(one)}" for one in before)]))
        for schedule in old:
            row = row_from(schedule, micros)[:-1]
            columns, marks = ", ".join(Schedule._fields[:-1]), ", ".join("?" * len(row))
            file.execute(f"insert into treadle_schedules ({columns}) values ({marks})", row)
    app = Treadle(f"sqlite:///{path}", clock=clock)
    stored = app.schedules.list()
    assert [one.evolve(own_id=None) for one in stored] == old
    assert len({one.own_id for one in stored}) == 3
    assert all(re.fullmatch(UUID, one.id) and app.schedules.get(one.id) == one for one in stored)
    app.close()
