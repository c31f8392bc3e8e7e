"""Walls between tenants: a bound handle can neither see, change nor infer what is another's."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from tests.support.making import claim
from tests.support.marks import any_store
from tests.support.scheduling import fire
from treadle import (
    Context,
    InvalidJob,
    Job,
    JobNotFound,
    KeyTaken,
    NotPossible,
    Retry,
    State,
    Task,
    Treadle,
    Unique,
    UnknownTask,
)
from treadle.app.tenant import Tenant
from treadle.engines.values import Ruling
from treadle.errors import ScheduleNotFound, TreadleError
from treadle.model import EventKind, lifecycle, new_id
from treadle.model.records import Pause, Schedule, derived_id, subject
from treadle.tasks.options import OnConflict
from treadle.testing import FakeClock, run_until_idle


@pytest.fixture
def greet(app: Treadle) -> Task:
    def greet(ctx: Context, name: str = "Ada") -> str:
        ctx.add_cost(7)
        if name == "nobody":
            raise RuntimeError("boom")
        return f"hello {name} of {ctx.job.tenant}"

    return app.register("greet", greet)


@pytest.fixture
def acme(app: Treadle, greet: Task) -> Tenant:
    return app.tenant("acme")


@pytest.fixture
def globex(app: Treadle, greet: Task) -> Tenant:
    return app.tenant("globex")


def said(act: Callable[[], object]) -> tuple[type, str]:
    """How an act is refused: the error's type and words."""
    with pytest.raises(TreadleError) as refused:
        act()
    return type(refused.value), str(refused.value)


# ------------------------------------------------------------------------------------------------- enqueue


def test_what_a_bound_handle_enqueues_is_its_tenants(app: Treadle, greet: Task, acme: Tenant) -> None:
    jobs = [
        acme.using(greet).enqueue("Bob"),
        acme.enqueue("greet", {"name": "Bob"}),
        acme.using(greet, priority=5, tenant="acme").enqueue("Bob"),
        *(receipt.job for receipt in acme.using(greet).enqueue_many([("Bob",), {"name": "Bob"}])),
        acme.enqueue("elsewhere", {"x": 1}, checked=False),
    ]
    assert {job.tenant for job in jobs} == {"acme"}
    assert {job.result for job in run_until_idle(app)} == {"hello Bob of acme"}


def test_async_callers_are_bound_as_well(app: Treadle, greet: Task, acme: Tenant) -> None:
    async def enqueue() -> set[str]:
        job = await acme.using(greet).aenqueue("Bob")
        [receipt] = await acme.using(greet).aenqueue_many([("Eve",)])
        return {job.tenant, receipt.job.tenant}

    assert asyncio.run(enqueue()) == {"acme"}
    with pytest.raises(InvalidJob, match="tenant"):
        asyncio.run(acme.using(greet, tenant="globex").aenqueue())


@pytest.mark.parametrize(
    "enqueue",
    [
        lambda acme, greet: acme.using(greet, tenant="globex").enqueue(),
        lambda acme, greet: acme.using(greet).using(tenant="globex").enqueue(),
        lambda acme, greet: acme.using(greet.using(tenant="globex")).enqueue(),
        lambda acme, greet: acme.using(greet, tenant="globex").enqueue_many([()]),
        lambda acme, greet: acme.using(greet).using(tenant="globex").enqueue_payload({}),
        lambda acme, greet: acme.enqueue("greet", tenant="globex"),
        lambda acme, greet: acme.enqueue("elsewhere", checked=False, tenant="globex"),
    ],
)  # fmt: skip
def test_a_bound_task_cannot_be_bound_to_another_tenant(
    app: Treadle, greet: Task, acme: Tenant, enqueue: Callable[[Tenant, Task], object]
) -> None:
    with pytest.raises(InvalidJob, match=r"tenant: 'globex' is not the tenant of this handle"):
        enqueue(acme, greet)
    assert sum(app.count().values()) == 0


def test_a_bound_handle_takes_tasks_of_its_own_app_only(make_app: Callable[..., Treadle], acme: Tenant) -> None:
    stranger = make_app()
    other, same = stranger.register("other", lambda: None), stranger.register("greet", lambda: None)
    for task in (other, same):
        with pytest.raises(UnknownTask, match=task.name):
            acme.using(task)


@pytest.mark.parametrize("name", ["", " ", "*", "x" * 201, "a\nb", None, 7])
def test_a_tenant_needs_a_name_that_is_its_own(app: Treadle, name: object) -> None:
    with pytest.raises(InvalidJob, match="tenant"):
        app.tenant(name)  # type: ignore[arg-type]


def test_where_tenants_are_required_a_bound_handle_is_enough(make_app: Callable[..., Treadle]) -> None:
    app = make_app(tenant_required=True)
    task = app.register("greet", lambda: None)
    assert app.tenant("acme").using(task).enqueue().tenant == "acme"
    assert app.tenant("acme").schedules.create("n", "greet", cron="@daily").tenant == "acme"


# ------------------------------------------------------------------------------------------- foreign ids


ACTS: dict[str, Callable[[Tenant, str], object]] = {
    "get": lambda handle, job_id: handle.get(job_id),
    "cancel": lambda handle, job_id: handle.cancel(job_id, actor="eve"),
    "retry": lambda handle, job_id: handle.retry(job_id, actor="eve"),
    "events": lambda handle, job_id: handle.events(job_id),
    "memos": lambda handle, job_id: handle.memos(job_id),
    "why": lambda handle, job_id: handle.why(job_id),
}


@any_store
@pytest.mark.parametrize("fate", ["pending", "running", "succeeded", "failed", "cancelled"])
def test_a_foreign_id_is_answered_exactly_as_one_that_is_nowhere(
    app: Treadle, greet: Task, acme: Tenant, globex: Tenant, fate: str
) -> None:
    task = acme.using(greet)
    match fate:
        case "pending":
            job = task.enqueue()
        case "running":
            job = task.enqueue()
            assert claim(app.engine, 1)
        case "cancelled":
            job = acme.cancel(task.enqueue().id)
        case _:
            job = task.enqueue("nobody" if fate == "failed" else "Ada")
            run_until_idle(app)
            if fate == "failed":
                acme.cancel(job.id)
    before, lines = app.get(job.id), app.events(job.id)
    nowhere = new_id()
    for act in ACTS.values():
        kind, words = said(lambda act=act: act(globex, job.id))
        unknown, as_unknown = said(lambda act=act: act(globex, nowhere))
        assert kind is unknown is JobNotFound
        assert words == as_unknown.replace(nowhere, job.id)
        kind, words = said(lambda act=act: act(globex, job.id.upper()))
        assert (kind, words) == (JobNotFound, as_unknown.replace(nowhere, job.id.upper()))
    assert app.get(job.id) == before
    assert app.events(job.id) == lines


@any_store
@pytest.mark.parametrize("conflict", OnConflict)
@pytest.mark.parametrize("key", [None, "k"])
def test_enqueueing_with_a_foreign_id_is_an_error_that_does_not_tell_whose(
    app: Treadle, greet: Task, acme: Tenant, globex: Tenant, conflict: OnConflict, key: str | None
) -> None:
    options: dict[str, Any] = {"key": key, "unique": Unique("active", on_conflict=conflict)} if key else {}
    job = acme.using(greet, **options).enqueue("secret")
    before = app.get(job.id)
    for act in (
        lambda: globex.using(greet, id=job.id, **options).enqueue("Bob"),
        lambda: globex.enqueue("greet", {"name": "Bob"}, id=job.id, **options),
        lambda: globex.using(greet, id=job.id.upper(), **options).enqueue_many([("Bob",)]),
    ):
        kind, words = said(act)
        assert kind is InvalidJob
        assert words == "id: this id cannot be used; leave it out and treadle makes one"
    assert app.get(job.id) == before
    assert sum(globex.count().values()) == 0
    assert acme.using(greet, id=job.id).enqueue("again").id == job.id  # its own: idempotent as ever


# -------------------------------------------------------------------------------------- the same names twice


@pytest.fixture
def both(app: Treadle, greet: Task, acme: Tenant, globex: Tenant, clock: FakeClock) -> dict[str, list[Job]]:
    """Two tenants with the same keys, names and schedules; acme has two jobs more."""
    made: dict[str, list[Job]] = {}
    for handle in (acme, globex):
        handle.schedules.create(
            "nightly", "greet", {"name": handle.name}, every="1h", overlap="skip", actor=handle.name
        )
        handle.pause(queue="mail", actor=handle.name, reason=f"{handle.name} moves")
        made[handle.name] = [handle.using(greet, key="k", unique="ever").enqueue(handle.name)]
    made["acme"] += [acme.using(greet).enqueue() for _ in range(2)]
    clock.advance(hours=1)
    run_until_idle(app)
    for handle in (acme, globex):
        failing = handle.using(greet).enqueue("nobody")
        run_until_idle(app)
        handle.cancel(failing.id, actor=handle.name)
    return made


@any_store
def test_each_sees_its_own_jobs_only(acme: Tenant, globex: Tenant, both: dict[str, list[Job]]) -> None:
    assert {job.tenant for job in acme.find().jobs} == {"acme"}
    assert {job.tenant for job in globex.find().jobs} == {"globex"}
    assert (len(acme.find().jobs), len(globex.find().jobs)) == (5, 3)
    for options in ({"state": State.SUCCEEDED}, {"task": "greet"}, {"queue": "default"}, {"key": "k"}, {"limit": 1}):
        assert {job.tenant for job in globex.find(**options).jobs} == {"globex"}
    assert globex.count()[State.SUCCEEDED] == 2
    assert acme.count()[State.SUCCEEDED] == 4
    assert globex.count(task="greet")[State.CANCELLED] == 1


@any_store
def test_pages_lead_nowhere_else(acme: Tenant, globex: Tenant, both: dict[str, list[Job]]) -> None:
    seen, cursor = [], None
    while True:
        page = globex.find(limit=1, cursor=cursor)
        seen += page.jobs
        if (cursor := page.cursor) is None:
            break
    assert {job.tenant for job in seen} == {"globex"}
    assert len(seen) == 3
    foreign = acme.find(limit=1).cursor
    assert {job.tenant for job in globex.find(limit=50, cursor=foreign).jobs} <= {"globex"}


@pytest.mark.parametrize("ask", ["find", "count", "costs", "budgets", "audit", "verify_audit", "pause", "resume"])
def test_another_tenant_cannot_be_asked_for(acme: Tenant, ask: str) -> None:
    with pytest.raises(InvalidJob, match=r"tenant: 'globex' is not the tenant of this handle"):
        getattr(acme, ask)(tenant="globex")
    if ask not in ("pause", "resume"):
        getattr(acme, ask)(tenant="acme")


@any_store
def test_keys_of_one_do_not_stand_in_the_way_of_the_other(
    app: Treadle, greet: Task, acme: Tenant, globex: Tenant, both: dict[str, list[Job]]
) -> None:
    assert both["acme"][0].id != both["globex"][0].id
    assert acme.using(greet, key="k", unique="ever").enqueue().id == both["acme"][0].id
    with pytest.raises(KeyTaken) as taken:
        globex.using(greet, key="k", unique=Unique("ever", on_conflict="raise")).enqueue()
    assert taken.value.holder == both["globex"][0].id


@any_store
def test_costs_are_each_ones_own(acme: Tenant, globex: Tenant, both: dict[str, list[Job]]) -> None:
    assert [(spent.tenant, spent.task, spent.micros) for spent in acme.costs()] == [("acme", "greet", 35)]
    assert [(spent.tenant, spent.task, spent.micros) for spent in globex.costs()] == [("globex", "greet", 21)]


@any_store
def test_the_trail_of_each_is_its_own(app: Treadle, acme: Tenant, globex: Tenant, both: dict[str, list[Job]]) -> None:
    app.pause(task="elsewhere", actor="root", reason="the house's own")
    for sealed in (False, True):
        if sealed:
            assert app.seal_audit() > 0
        lines = globex.audit()
        assert {line.tenant for line in lines} == {"globex"}
        assert "acme" not in str(lines)
        assert "root" not in str(lines)
        assert len(acme.audit()) == len(lines)
        trail = globex.verify_audit()
        assert {found.tenant for found in trail.tenants} == ({"globex"} if sealed else set())
        assert trail.unsealed == (0 if sealed else len(lines))
        assert trail.sound


# ---------------------------------------------------------------------------------------------- schedules


@any_store
def test_schedules_of_one_name_are_two(app: Treadle, acme: Tenant, globex: Tenant, both: dict[str, list[Job]]) -> None:
    assert [schedule.tenant for schedule in globex.schedules.list()] == ["globex"]
    assert globex.schedules.get("nightly").payload == {"name": "globex"}
    results = {job.result for job in app.find(state=State.SUCCEEDED).jobs if job.schedule == "nightly"}
    assert results == {"hello acme of acme", "hello globex of globex"}
    acme.schedules.update("nightly", priority=9, actor="ada")
    acme.schedules.disable("nightly", actor="ada")
    acme.schedules.run("nightly", actor="ada")
    acme.schedules.delete("nightly", actor="ada")
    other = globex.schedules.get("nightly")
    assert (other.enabled, other.priority) == (True, 0)
    assert {line.actor for line in globex.schedules.events("nightly")} == {"globex"}
    assert len(acme.schedules.events("nightly")) == 5


@any_store
def test_a_schedule_of_another_is_answered_exactly_as_one_that_is_nowhere(acme: Tenant, globex: Tenant) -> None:
    acme.schedules.create("secret", "greet", cron="@daily")
    acts: list[Callable[[str], object]] = [
        globex.schedules.get, globex.schedules.enable, globex.schedules.disable, globex.schedules.delete,
        globex.schedules.run, globex.schedules.preview, lambda name: globex.schedules.update(name, priority=1),
    ]  # fmt: skip
    for act in acts:
        kind, words = said(lambda act=act: act("secret"))
        assert (kind, words) == (ScheduleNotFound, said(lambda act=act: act("nowher"))[1].replace("nowher", "secret"))
        assert said(lambda act=act: act("secre"))[1].count("secret") == 0  # no hint at a name that is another's
    assert globex.schedules.events("secret") == []
    assert globex.schedules.create("secret", "greet", cron="@hourly").cron == "@hourly"
    assert acme.schedules.get("secret").cron == "@daily"


@pytest.mark.parametrize("tenant", ["globex", "default"])
def test_schedules_of_another_tenant_cannot_be_asked_for(acme: Tenant, tenant: str) -> None:
    schedules = acme.schedules
    for act in (
        lambda: schedules.list(tenant=tenant),
        lambda: schedules.get("n", tenant=tenant),
        lambda: schedules.create("n", "greet", cron="@daily", tenant=tenant),
        lambda: schedules.update("n", priority=1, tenant=tenant),
        lambda: schedules.enable("n", tenant=tenant),
        lambda: schedules.disable("n", tenant=tenant),
        lambda: schedules.delete("n", tenant=tenant),
        lambda: schedules.run("n", tenant=tenant),
        lambda: schedules.preview("n", tenant=tenant),
        lambda: schedules.events("n", tenant=tenant),
    ):
        assert said(act) == (InvalidJob, f"tenant: {tenant!r} is not the tenant of this handle")


# ------------------------------------------------------------------------------------------------ the gate


@any_store
def test_a_pause_of_one_stops_nobody_else(app: Treadle, greet: Task, acme: Tenant, globex: Tenant) -> None:
    acme.pause(actor="ada", reason="we move")
    for handle in (acme, globex):
        handle.using(greet).enqueue(handle.name)
    assert [job.tenant for job in run_until_idle(app)] == ["globex"]
    assert [pause.tenant for pause in acme.pauses()] == ["acme"]
    assert globex.pauses() == []
    kind, words = said(globex.resume)
    assert kind is NotPossible
    assert "acme" not in words
    acme.resume()
    assert [job.tenant for job in run_until_idle(app)] == ["acme"]


def test_pauses_of_the_house_are_neither_seen_nor_lifted_by_a_tenant(app: Treadle, greet: Task, acme: Tenant) -> None:
    app.pause(everything=True, actor="root", reason="globex floods us")
    app.pause(queue="default", actor="root")
    assert acme.pauses() == []
    for scope in ({}, {"queue": "default"}):
        with pytest.raises(NotPossible, match="paused: nothing"):
            acme.resume(**scope)
    job = acme.using(greet).enqueue()
    told = str(acme.why(job.id))
    assert "paused" in told
    assert "root" not in told
    assert "globex" not in told
    assert len(app.pauses()) == 2


@any_store
def test_a_pause_that_waits_waits_for_its_own_jobs(app: Treadle, greet: Task, acme: Tenant, globex: Tenant) -> None:
    acme.using(greet).enqueue()
    assert claim(app.engine, 1)
    assert globex.pause(wait=True, timeout=0).scope == "tenant globex"


# ------------------------------------------------------------------------------------- what could be inferred


def test_why_tells_a_tenant_nothing_of_others(app: Treadle, greet: Task, acme: Tenant, globex: Tenant) -> None:
    job = globex.using(greet).enqueue()
    alone = globex.why(job.id)
    acme.pause(actor="ada")
    for _ in range(5):
        acme.using(greet).enqueue()
    app.worker(name="w1", queues=["acme-only"])._presence.beat()
    assert globex.why(job.id) == alone
    assert [obstacle.kind for obstacle in alone] == ["next"]


def test_why_names_the_holder_of_a_key_only_of_the_same_tenant(
    app: Treadle, greet: Task, acme: Tenant, globex: Tenant
) -> None:
    """A retry that found its key taken ends superseded; a job of another tenant with the same key is nobody's rival."""
    lost = globex.using(greet, key="k", unique="pending").enqueue("nobody")
    [held] = claim(app.engine, 1)
    rival = globex.using(greet, key="k", unique="pending").enqueue()
    acme.using(greet, key="k", unique="pending").enqueue()
    now = app.engine.now()
    change = lifecycle.settle(held, lifecycle.Snoozed(60), now)
    [verdict] = app.engine.turn([change]).verdicts
    assert verdict.ruling is Ruling.REFUSED
    app.engine.turn([lifecycle.supersede(change, now)])
    [obstacle] = globex.why(lost.id)
    assert obstacle.kind == "superseded"
    assert rival.id in obstacle.text


@any_store
@pytest.mark.parametrize("record", [Schedule, Pause])
def test_the_trail_of_anothers_schedule_or_pause_is_not_to_be_had_under_its_id(
    app: Treadle, greet: Task, acme: Tenant, globex: Tenant, clock: FakeClock, record: type
) -> None:
    """The id of a schedule's trail is made from its name: anybody can work it out."""
    if record is Schedule:
        acme.schedules.create("nightly", "greet", cron="@daily", actor="ada", reason="secret")
        id_ = subject(Schedule("nightly", "greet", clock.now(), tenant="acme"))
    else:
        id_ = subject(acme.pause(queue="mail", actor="ada", reason="secret"))
    assert said(lambda: globex.events(id_))[0] is JobNotFound
    try:
        globex.using(greet, id=id_).enqueue()
        assert "secret" not in str(globex.events(id_))
        globex.cancel(id_, actor="eve")
        assert {line.actor for line in globex.events(id_)} == {"eve"}
    except InvalidJob:
        pass  # such an id may also be refused
    acts = acme.schedules.events("nightly") if record is Schedule else acme.audit()
    assert {line.actor for line in acts} == {"ada"}


@any_store
def test_the_trail_of_anothers_job_that_was_pruned_is_not_to_be_had_under_its_id(
    app: Treadle, greet: Task, acme: Tenant, globex: Tenant, clock: FakeClock
) -> None:
    job = acme.using(greet).enqueue()
    acme.cancel(job.id, actor="ada", reason="secret")
    clock.advance(days=8)
    assert app.prune() == 1
    again = globex.using(greet, id=job.id).enqueue()
    assert again.tenant == "globex"
    assert globex.events(again.id) == []


@any_store
def test_nobody_stops_anothers_schedule_by_taking_the_ids_of_its_ticks(
    app: Treadle, greet: Task, acme: Tenant, globex: Tenant, clock: FakeClock
) -> None:
    schedule = acme.schedules.create("nightly", "greet", every="1h")
    tick = schedule.next_at
    with suppress(InvalidJob):  # such an id may also be refused
        globex.using(greet, id=derived_id(f"tick\x1facme\x1fnightly\x1f{tick.isoformat()}", tick)).enqueue()
    clock.advance(hours=1)
    fire(app)
    fire(app)
    [job] = acme.find().jobs
    assert (job.schedule, job.due_at) == ("nightly", tick)
    assert acme.schedules.get("nightly").last_job == job.id
    assert acme.schedules.get("nightly").next_at == tick + timedelta(hours=1)


# ----------------------------------------------------------------------------------------- all that it offers

REACHED = {
    "get", "find", "count", "view", "events", "memos", "why", "costs", "cancel", "retry", "schedules", "pause",
    "resume", "pauses", "audit", "verify_audit", "using", "enqueue", "stream", "wait_for", "result_of",
    "edit", "run_now", "delete", "retry_many", "cancel_many", "delete_many", "resolve_id", "status", "audit_page",
    "views", "failures", "follow", "counts", "budgets",
}  # fmt: skip
HARMLESS = {
    "name", "engine", "profile", "settings",  # the app's own parts, which no tenant is handed
    "masked", "masked_schedule", "masked_events",  # of a job or schedule that one has
}  # fmt: skip


def test_everything_that_a_bound_handle_offers_is_tried_here(acme: Tenant) -> None:
    offered = {name for name in dir(acme) if not name.startswith("_")}
    faces = {name for name in offered if name.startswith("a") and name[1:] in REACHED}  # the same, awaited
    assert offered - faces == REACHED | HARMLESS


@any_store
def test_failures_and_news_are_of_one_tenant_alone(app: Treadle, acme: Tenant) -> None:
    app.register("break_it", lambda: 1 / 0, retry=Retry(max_attempts=1))
    news = acme.follow()
    theirs, own = (app.enqueue("break_it", {}, tenant=tenant) for tenant in ("globex", "acme"))
    run_until_idle(app)
    assert [(group.failed, group.job_id) for group in acme.failures().groups] == [(1, own.id)]
    assert {event.event.job_id for event in news.news()} == {own.id}
    assert [view["id"] for view in acme.views(acme.find().jobs)] == [own.id]
    assert {job.id for job in app.find().jobs} == {theirs.id, own.id}


@any_store
def test_the_id_of_another_tenants_job_tells_nothing_of_its_task(app: Treadle, greet: Task, acme: Tenant) -> None:
    app.register("secret_merger", lambda: None)
    job = app.enqueue("secret_merger", {}, tenant="globex")
    with pytest.raises(InvalidJob) as told:
        acme.using(greet, id=job.id).enqueue()
    assert "secret_merger" not in str(told.value)


def test_everything_of_a_tenant_is_no_part_of_it(acme: Tenant) -> None:
    with pytest.raises(InvalidJob, match="everything: is more than queue"):
        acme.pause(everything=True, queue="mail")
    assert acme.pause(everything=True).scope == "tenant acme"


def test_what_belongs_to_the_house_is_not_offered(acme: Tenant) -> None:
    for name in ("worker", "workers", "recover", "prune", "migrate", "tenant", "seal_audit", "declare", "for_each"):
        assert not hasattr(acme, name)


def test_acts_of_a_tenant_leave_their_lines_under_its_name(
    app: Treadle, greet: Task, acme: Tenant, clock: FakeClock
) -> None:
    job = acme.using(greet).enqueue()
    acme.cancel(job.id, actor="ada", reason="not wanted")
    clock.advance(seconds=1)
    acme.retry(job.id, actor="bob")
    assert [(line.kind, line.actor, line.tenant) for line in acme.events(job.id)] == [
        (EventKind.CANCELLED, "ada", "acme"), (EventKind.RETRIED, "bob", "acme"),
    ]  # fmt: skip
    assert acme.view(acme.get(job.id))["tenant"] == "acme"
