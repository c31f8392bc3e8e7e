"""The gate: pauses of everything, a tenant, a queue, a task; who made them, why, until when, and how one waits."""

import math
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support.making import claim, race, settle
from tests.support.marks import any_store
from treadle import Context, InvalidJob, NotPossible, State, Task, Treadle
from treadle.errors import TreadleError
from treadle.model import EventKind
from treadle.model.lifecycle import Succeeded
from treadle.model.records import ANY, Pause
from treadle.profiles import tenant_ops
from treadle.testing import FakeClock, run_until_idle

JOBS = [(tenant, task) for tenant in ("acme", "globex") for task in ("send", "print")]
QUEUES = {"send": "mail", "print": "paper"}
BOTH = ("mail", "paper")


@pytest.fixture
def house(app: Treadle) -> Treadle:
    """An app with two tasks, each with its queue."""
    for task, queue in QUEUES.items():
        app.register(task, lambda: None, queue=queue)
    return app


def enqueue_all(app: Treadle) -> None:
    for tenant, task in JOBS:
        app.tasks[task].using(tenant=tenant).enqueue()


def ran(app: Treadle) -> list[tuple[str, str]]:
    return sorted((job.tenant, job.task) for job in run_until_idle(app))


SCOPES: dict[str, tuple[dict[str, Any], list[tuple[str, str]]]] = {
    "everything": ({"everything": True}, []),
    "tenant": ({"tenant": "acme"}, [("globex", "print"), ("globex", "send")]),
    "queue": ({"queue": "mail"}, [("acme", "print"), ("globex", "print")]),
    "task": ({"task": "send"}, [("acme", "print"), ("globex", "print")]),
    "tenant and queue": (
        {"tenant": "acme", "queue": "mail"}, [("acme", "print"), ("globex", "print"), ("globex", "send")],
    ),
    "tenant and task": (
        {"tenant": "acme", "task": "print"}, [("acme", "send"), ("globex", "print"), ("globex", "send")],
    ),
    "queue and task": ({"queue": "mail", "task": "send"}, [("acme", "print"), ("globex", "print")]),
    "all three": (
        {"tenant": "acme", "queue": "mail", "task": "send"},
        [("acme", "print"), ("globex", "print"), ("globex", "send")],
    ),
    "nothing there": ({"queue": "mail", "task": "print"}, sorted(JOBS)),
}  # fmt: skip


# ----------------------------------------------------------------------------------------- pause and resume


@any_store
@pytest.mark.covers("004-T11.a", "004-T11.b", "004-T05.b")
@pytest.mark.parametrize(("scope", "others"), SCOPES.values(), ids=SCOPES)
def test_a_pause_stops_what_it_names_and_nothing_else_until_it_is_lifted(
    house: Treadle, scope: dict, others: list[tuple[str, str]]
) -> None:
    house.pause(**scope)
    enqueue_all(house)
    assert ran(house) == others
    assert ran(house) == []
    house.resume(**scope)
    assert sorted([*others, *ran(house)]) == sorted(JOBS)


@any_store
@pytest.mark.parametrize(("scope", "others"), SCOPES.values(), ids=SCOPES)
def test_jobs_that_waited_before_the_pause_are_stopped_as_well(
    house: Treadle, scope: dict, others: list[tuple[str, str]]
) -> None:
    enqueue_all(house)
    house.pause(**scope)
    assert ran(house) == others
    house.resume(**scope)
    assert sorted([*others, *ran(house)]) == sorted(JOBS)


@any_store
@pytest.mark.covers("004-T11.a")
def test_what_runs_when_a_pause_comes_runs_on_and_ends(house: Treadle) -> None:
    job = house.tasks["send"].enqueue()
    [held] = claim(house.engine, 1, queues=BOTH)
    house.pause(everything=True)
    assert claim(house.engine, 1, queues=BOTH) == []
    settle(house.engine, held, Succeeded('"sent"'))
    assert (house.get(job.id).state, house.get(job.id).result) == (State.SUCCEEDED, "sent")


@any_store
@pytest.mark.covers("004-T11.a", "004-T11.b")
def test_the_tenant_system_is_offline_while_everything_is_paused(make_app: Callable[..., Treadle]) -> None:
    """`atlas_online` is one pause: workers find nothing to take, and go on when it is lifted."""
    app = make_app(profile=tenant_ops.PROFILE)
    app.register("EMAIL_SEND", lambda: None)
    workers = [make_app(profile=tenant_ops.PROFILE) for _ in range(3)]
    app.pause(everything=True, actor="ops", reason=tenant_ops.GATE)
    for tenant in ("acme", "globex"):
        app.tasks["EMAIL_SEND"].using(tenant=tenant).enqueue()
    assert [claim(worker.engine, 10) for worker in workers] == [[], [], []]
    assert app.count()[State.PENDING] == 2
    app.resume(everything=True, actor="ops")
    assert [job.state for job in run_until_idle(app)] == [State.SUCCEEDED] * 2


def test_a_pause_is_answered_with_and_listed_with_who_why_and_since_when(house: Treadle, clock: FakeClock) -> None:
    made = house.pause(queue="mail", actor="ada", reason="the provider is down")
    assert made == Pause(ANY, "mail", ANY, "ada", "the provider is down", clock.now(), None, made.revision)
    assert made.scope == "queue mail"
    other = house.pause(tenant="acme", task="print", until="1h")
    assert other.scope == "tenant acme, task print"
    assert {pause.scope for pause in house.pauses()} == {made.scope, other.scope}
    assert house.resume(queue="mail", actor="bob") == made
    assert house.pauses() == [other]


def test_every_act_at_the_gate_leaves_a_line_with_actor_and_reason(house: Treadle, clock: FakeClock) -> None:
    house.pause(tenant="acme", queue="mail", actor="ada", reason="down")
    clock.advance(seconds=1)
    house.pause(tenant="acme", queue="mail", actor="bob", reason="still down")
    clock.advance(seconds=1)
    house.resume(tenant="acme", queue="mail", actor="eve", reason="up again")
    clock.advance(seconds=1)
    house.pause(tenant="acme", queue="mail", actor="kim")
    house.pause(everything=True, actor="root", reason="all of it")
    lines = house.audit(tenant="acme")[::-1]
    assert [(line.kind, line.actor, line.note) for line in lines] == [
        (EventKind.PAUSED, "ada", "tenant acme, queue mail: down"),
        (EventKind.PAUSED, "bob", "tenant acme, queue mail: still down"),
        (EventKind.RESUMED, "eve", "tenant acme, queue mail: up again"),
        (EventKind.PAUSED, "kim", "tenant acme, queue mail"),
    ]
    assert len({line.revision for line in lines}) == 4
    [line] = [line for line in house.audit() if line.actor == "root"]
    assert (line.kind, line.note) == (EventKind.PAUSED, "everything: all of it")


def test_pausing_twice_changes_who_why_and_until_and_is_lifted_once(house: Treadle, clock: FakeClock) -> None:
    house.pause(task="send", actor="ada", reason="down", until="1h")
    clock.advance(minutes=1)
    again = house.pause(task="send", actor="bob", reason="still down")
    [found] = house.pauses()
    assert found == again
    assert (found.actor, found.reason, found.at, found.until) == ("bob", "still down", clock.now(), None)
    house.resume(task="send")
    assert house.pauses() == []


def test_resuming_what_is_not_paused_names_what_is(house: Treadle) -> None:
    with pytest.raises(NotPossible, match="queue mail is not paused by itself; paused: nothing"):
        house.resume(queue="mail")
    house.pause(tenant="acme", queue="mail")
    house.pause(everything=True)
    with pytest.raises(NotPossible) as refused:
        house.resume(queue="mail")
    assert "tenant acme, queue mail" in str(refused.value)
    assert "everything" in str(refused.value)
    assert len(house.pauses()) == 2


def test_pauses_that_overlap_are_lifted_one_by_one(house: Treadle) -> None:
    enqueue_all(house)
    house.pause(everything=True)
    house.pause(tenant="acme")
    house.pause(task="send")
    assert ran(house) == []
    house.resume(everything=True)
    assert ran(house) == [("globex", "print")]
    house.resume(tenant="acme")
    assert ran(house) == [("acme", "print")]
    house.resume(task="send")
    assert ran(house) == [("acme", "send"), ("globex", "send")]


# ------------------------------------------------------------------------------------------------- until


@any_store
@pytest.mark.parametrize(("scope", "others"), SCOPES.values(), ids=SCOPES)
def test_a_pause_with_an_end_is_over_at_that_moment(
    house: Treadle, clock: FakeClock, scope: dict, others: list[tuple[str, str]]
) -> None:
    house.pause(**scope, until="10m")
    enqueue_all(house)
    assert ran(house) == others
    clock.advance(minutes=9, seconds=59)
    assert ran(house) == []
    clock.advance(seconds=1)
    assert sorted([*others, *ran(house)]) == sorted(JOBS)
    assert house.pauses() == []


def test_an_end_may_be_a_moment_in_any_zone(house: Treadle, clock: FakeClock) -> None:
    berlin = datetime.fromisoformat("2026-01-01T14:00:00+01:00")
    assert house.pause(everything=True, until=berlin).until == clock.now() + timedelta(hours=1)
    assert house.pause(everything=True, until=timedelta(days=1)).until == clock.now() + timedelta(days=1)
    assert house.pause(everything=True, until=90).until == clock.now() + timedelta(seconds=90)


def test_one_whose_time_is_over_can_be_paused_anew_and_lifted(house: Treadle, clock: FakeClock) -> None:
    house.pause(queue="mail", until="1m")
    clock.advance(minutes=2)
    house.pause(queue="mail", reason="again")
    assert [pause.reason for pause in house.pauses()] == ["again"]
    enqueue_all(house)
    assert ran(house) == [("acme", "print"), ("globex", "print")]
    house.resume(queue="mail")
    assert ran(house) == [("acme", "send"), ("globex", "send")]


# --------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"tenant": ""}, "tenant"), ({"queue": " "}, "queue"), ({"task": "\n"}, "task"), ({"task": "x" * 201}, "task"),
        ({"tenant": "*"}, "tenant"), ({"queue": "*"}, "queue"), ({"task": "*"}, "task"), ({"queue": 7}, "queue"),
        ({"actor": ""}, "actor"), ({"until": 0}, "past"), ({"until": -5}, "until"), ({"until": "soon"}, "until"),
        ({"until": math.inf}, "until"), ({"until": datetime(2020, 1, 1, tzinfo=UTC)}, "2020-01-01 .* is past"),
        ({"until": datetime(2030, 1, 1)}, "no time zone"),  # noqa: DTZ001
        ({"timeout": "long"}, "timeout"), ({"wait": True, "timeout": -1}, "timeout"),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_paused_is_refused_and_nothing_is_written(house: Treadle, said: dict, words: str) -> None:
    with pytest.raises(TreadleError, match=words):
        house.pause(**said, everything=not said.keys() & {"tenant", "queue", "task"})
    assert house.pauses() == []
    assert house.audit() == []


def test_a_pause_of_nothing_named_is_refused_unless_everything_is_meant(house: Treadle) -> None:
    for act in (house.pause, house.resume):
        with pytest.raises(InvalidJob, match="everything: nothing is named"):
            act()
        with pytest.raises(InvalidJob, match="everything: is more than queue"):
            act(queue="mail", everything=True)
    assert house.pauses() == []


@pytest.mark.parametrize(
    ("said", "words"), [({"tenant": ""}, "tenant"), ({"task": "*"}, "task"), ({"actor": ""}, "actor")]
)
def test_what_cannot_be_resumed_is_refused(house: Treadle, said: dict, words: str) -> None:
    house.pause(everything=True)
    with pytest.raises(InvalidJob, match=words):
        house.resume(**said)
    assert len(house.pauses()) == 1


@any_store
def test_a_reason_that_no_store_takes_is_made_storable(house: Treadle) -> None:
    assert house.pause(everything=True, reason="\0bad\ud800" + "x" * 9000).reason.startswith(
        "\N{REPLACEMENT CHARACTER}bad"
    )
    [pause] = house.pauses()
    assert len(pause.reason) < 4100
    house.resume(everything=True, reason="\0")


# ------------------------------------------------------------------------------------------------ waiting


@any_store
def test_a_pause_that_waits_returns_when_nothing_in_its_scope_runs_any_more(house: Treadle) -> None:
    jobs = [house.tasks["send"].enqueue(), house.tasks["print"].enqueue()]
    held = claim(house.engine, 2, queues=BOTH)
    paused, returned = threading.Event(), threading.Event()
    answer: list[Pause] = []

    def pause() -> None:
        answer.append(house.pause(queue="mail", wait=True, timeout="1m"))
        returned.set()

    save = house.engine.save

    def saved(*arguments: object, **named: object) -> object:
        done = save(*arguments, **named)
        paused.set()
        return done

    house.engine.save = saved  # type: ignore[method-assign]
    thread = threading.Thread(target=pause)
    thread.start()
    assert paused.wait(30)
    assert not returned.wait(0.3)  # the mail is still being sent
    [mail] = [job for job in held if job.id == jobs[0].id]
    settle(house.engine, mail, Succeeded("1"))
    assert returned.wait(30)
    thread.join()
    assert answer == house.pauses()
    assert house.get(jobs[1].id).state is State.RUNNING  # of another queue: none of its business


@pytest.mark.parametrize(
    "scope", [{"everything": True}, {"tenant": "acme"}, {"queue": "mail"}, {"task": "send"}], ids=str
)
def test_when_patience_is_over_it_says_so_and_the_pause_stands(house: Treadle, scope: dict) -> None:
    house.tasks["send"].using(tenant="acme").enqueue()
    [held] = claim(house.engine, 1, queues=BOTH)
    house.tasks["send"].using(tenant="acme").enqueue()
    with pytest.raises(NotPossible, match=rf"is paused, but job {held.id} and maybe others still run after 0.2 s"):
        house.pause(**scope, wait=True, timeout=0.2, actor="ada")
    assert [pause.actor for pause in house.pauses()] == ["ada"]
    assert claim(house.engine, 1, queues=BOTH) == []


def test_a_pause_does_not_wait_for_what_it_does_not_stop(house: Treadle) -> None:
    house.tasks["send"].using(tenant="acme").enqueue()
    assert len(claim(house.engine, 1, queues=BOTH)) == 1
    for scope in ({"tenant": "globex"}, {"queue": "paper"}, {"task": "print"}, {"tenant": "acme", "queue": "paper"}):
        house.pause(**scope, wait=True, timeout=0)
    assert len(house.pauses()) == 4


def test_a_job_that_pauses_its_own_queue_ends_and_no_other_begins(house: Treadle) -> None:
    def stop(ctx: Context) -> None:
        house.pause(queue="mail", actor=f"job {ctx.job.id}")

    task: Task = house.register("stop", stop, queue="mail")
    for _ in range(3):
        task.enqueue()
    assert [job.state for job in run_until_idle(house)] == [State.SUCCEEDED]
    assert house.count()[State.PENDING] == 2


# ------------------------------------------------------------------------------------------------- at once


@any_store
def test_many_that_pause_at_once_all_pause_and_each_leaves_its_line(make_app: Callable[..., Treadle]) -> None:
    apps = [make_app() for _ in range(5)]
    for app in apps:
        app.pauses()
    race(5, lambda place: apps[place].pause(queue="mail", actor=f"a{place}"))
    assert len(apps[0].pauses()) == 1
    assert {line.actor for line in apps[0].audit()} == {f"a{place}" for place in range(5)}


@any_store
def test_of_many_that_resume_at_once_one_does(make_app: Callable[..., Treadle]) -> None:
    apps = [make_app() for _ in range(4)]
    apps[0].pause(queue="mail")
    for app in apps:
        app.pauses()

    def resume(place: int) -> str:
        try:
            return apps[place].resume(queue="mail", actor=f"a{place}").scope
        except NotPossible:
            return "no"

    assert sorted(race(4, resume)) == ["no", "no", "no", "queue mail"]
    assert [line.kind for line in apps[0].audit()].count(EventKind.RESUMED) == 1


# --------------------------------------------------------------------------------------------- why, and schedules


def test_why_tells_of_the_pauses_that_stop_a_job(house: Treadle) -> None:
    job = house.tasks["send"].using(tenant="acme").enqueue()
    house.pause(tenant="globex", actor="eve")
    assert [obstacle.kind for obstacle in house.why(job.id)] == ["no_worker"]
    house.pause(task="send", actor="ada", reason="the provider is down")
    first, *_ = house.why(job.id)
    assert first.kind == "paused"
    assert "task send is paused by ada since" in first.text
    assert "the provider is down" in first.text


def test_schedules_go_on_making_jobs_and_the_gate_keeps_them(house: Treadle, clock: FakeClock) -> None:
    house.schedules.create("hourly", "send", every="1h", misfire="all")
    house.pause(queue="mail")
    for _ in range(3):
        clock.advance(hours=1)
        assert run_until_idle(house) == []
    house.resume(queue="mail")
    assert len(run_until_idle(house)) == 3
