"""The audit trail of an application: what is written, how it is sealed, what a look at it finds, how long it lasts."""

import json
import logging
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.making import an_error, claim, race, settle, start
from tests.support.marks import any_store, sql_stores
from treadle import Context, GiveUp, InvalidJob, Job, JobNotFound, Reason, Retry, State, Task, Treadle
from treadle.errors import TreadleError
from treadle.model import Event, EventKind
from treadle.model.lifecycle import Failed, FailedForGood, Outcome, TimedOut
from treadle.model.records import Seal
from treadle.model.seals import AT_ONCE
from treadle.profiles import tenant_ops
from treadle.testing import FakeClock, run_until_idle
from treadle.worker.config import WorkerConfig
from treadle.worker.maintenance.pruning import Pruning
from treadle.worker.maintenance.sealing import MAX_WAIT, Sealing

ONCE = Retry(max_attempts=1)


@pytest.fixture
def send(app: Treadle) -> Task:
    return register(app)


def register(app: Treadle, name: str = "EMAIL_SEND", **options: object) -> Task:
    def send(to: str = "ada@example.org") -> str:
        if to == "nobody":
            raise RuntimeError("no such mailbox")
        if to == "never":
            raise GiveUp("refused for good")
        return f"sent to {to}"

    return app.register(name, send, **{"retry": Retry(max_attempts=2, base=0, jitter=0), **options})


def sealer(app: Treadle) -> Sealing:
    """What a worker seals with, called by hand."""
    return Sealing(app.engine)


def acted(app: Treadle, times: int = 1, tenant: str = "acme", actor: str = "ada") -> list[Event]:
    """Lines in the trail: an operator paused a queue again and again."""
    for number in range(times):
        app.pause(tenant=tenant, queue="mail", actor=actor, reason=f"{actor} {number}")
    return app.audit(tenant=tenant, limit=times)


# ---------------------------------------------------------------------------------------------- what is written


@any_store
@pytest.mark.covers("004-T12.a")
def test_every_success_and_final_failure_of_the_tenant_system_is_in_the_trail(
    make_app: Callable[..., Treadle],
) -> None:
    app = make_app(profile=tenant_ops.PROFILE)
    task = register(app).using(tenant="acme", retry=ONCE)
    jobs = [task.enqueue(), task.enqueue("nobody"), task.enqueue("never")]
    run_until_idle(app)
    assert [[line.kind for line in app.events(job.id)] for job in jobs] == [
        [EventKind.ENQUEUED, EventKind.CLAIMED, EventKind.SUCCEEDED],
        [EventKind.ENQUEUED, EventKind.CLAIMED, EventKind.FAILED],
        [EventKind.ENQUEUED, EventKind.CLAIMED, EventKind.FAILED],
    ]
    assert {line.note for line in app.audit() if line.kind is EventKind.FAILED} == {
        "JOB_EXHAUSTED_RETRIES: no such mailbox",
        "refused for good",
    }


def test_otherwise_failures_and_acts_of_operators_are(app: Treadle, send: Task) -> None:
    sent, failed, cancelled = send.enqueue(), send.enqueue("nobody"), send.using(run_after="1h").enqueue()
    run_until_idle(app)
    app.cancel(cancelled.id, actor="ada", reason="not wanted")
    assert app.events(sent.id) == []
    assert [line.kind for line in app.events(failed.id)] == [EventKind.RETRYING, EventKind.FAILED]
    [line] = app.events(cancelled.id)
    assert (line.kind, line.actor, line.note) == (EventKind.CANCELLED, "ada", "not wanted")


@any_store
@pytest.mark.covers("004-T10.a", "004-T10.b")
@pytest.mark.parametrize("level", ["failures", "everything"])
def test_the_tenant_systems_own_events_are_in_the_trail_at_every_level(
    make_app: Callable[..., Treadle], level: str
) -> None:
    app = make_app(profile=tenant_ops.PROFILE, audit=level)
    task = register(app, audit=tenant_ops.EMAIL_AUDIT).using(tenant="acme")
    sent, failed, refused = task.enqueue(), task.enqueue("nobody"), task.enqueue("never")
    run_until_idle(app)
    assert [line.note for line in app.events(refused.id)][-1] == "refused for good"  # it had a retry left
    job = app.get(failed.id)
    assert (job.state, job.reason, job.failures) == (State.FAILED, Reason.EXHAUSTED, 2)
    last = app.events(sent.id)[-1], app.events(failed.id)[-1]
    assert [(line.kind, line.note) for line in last] == [
        (EventKind.SUCCEEDED, "EMAIL_SENT"), (EventKind.FAILED, "JOB_EXHAUSTED_RETRIES: no such mailbox"),
    ]  # fmt: skip
    assert {line.tenant for line in last} == {"acme"}
    assert [line.note for line in app.events(failed.id)].count("JOB_EXHAUSTED_RETRIES: no such mailbox") == 1


@any_store
@pytest.mark.covers("004-T10.b")
def test_jobs_of_schedules_and_of_rows_leave_these_events_too(app: Treadle, clock: FakeClock) -> None:
    register(app, audit={"succeeded": "EMAIL_SENT", "exhausted": "JOB_EXHAUSTED_RETRIES"})
    app.for_each(lambda: [{"to": "bob"}, {"to": "nobody"}], "users")
    app.schedules.create("digest", "EMAIL_SEND", every="1h")
    app.schedules.create("digests", "EMAIL_SEND", every="1h", for_each="users")
    clock.advance(hours=1)
    run_until_idle(app)
    notes = [line.note for line in app.audit() if line.kind in (EventKind.SUCCEEDED, EventKind.FAILED)]
    assert sorted(notes) == ["EMAIL_SENT", "EMAIL_SENT", "JOB_EXHAUSTED_RETRIES: no such mailbox"]


@any_store
@pytest.mark.covers("004-T10.b")
def test_only_a_job_that_has_spent_its_retries_says_so_whatever_way_it_spent_them(
    make_app: Callable[..., Treadle], clock: FakeClock
) -> None:
    """By failures, by timeouts or by crashes; not one that gave up, has a bad payload, or will be retried."""
    app = make_app(profile=tenant_ops.PROFILE)
    names = {"exhausted": "JOB_EXHAUSTED_RETRIES", "failed": "JOB_REFUSED"}
    task = register(app, audit=names).using(tenant="acme", retry=ONCE)

    def ended(how: Outcome | None) -> str:
        """The note of the last event of a job whose only attempt ends so; None: its worker dies."""
        job = task.enqueue()
        [running] = claim(app.engine, 1, lease=30.0)
        start(app.engine, running)
        if how is None:
            clock.advance(seconds=30)
            assert app.recover() == 1
        else:
            settle(app.engine, running, how)
        assert app.get(job.id).state is State.FAILED
        return app.events(job.id)[-1].note.partition(":")[0]

    error = an_error(clock.now())
    assert [ended(how) for how in (Failed(error), TimedOut(error), None)] == ["JOB_EXHAUSTED_RETRIES"] * 3
    reasons = (Reason.PERMANENT, Reason.UNKNOWN_TASK, Reason.INVALID_PAYLOAD)
    assert [ended(FailedForGood(reason, error)) for reason in reasons] == ["JOB_REFUSED"] * 3
    again = task.using(retry=Retry(max_attempts=2, base=0)).enqueue("nobody")
    [running] = claim(app.engine, 1)
    settle(app.engine, running, Failed(error))
    assert app.events(again.id)[-1].note == error.message  # it has an attempt left


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ({"cancelled": "X"}, "must be succeeded, failed or exhausted"),
        ({"failed": ""}, "audit"),
        ({"failed": "a\nb"}, "audit"),
        ({"exhausted": "a\nb"}, "audit"),
        ({"exhausted": 7}, "audit"),
    ],
)
def test_a_bad_name_of_an_event_is_refused_where_it_is_written(app: Treadle, names: dict, words: str) -> None:
    with pytest.raises(TreadleError, match=words):
        register(app, audit=names)


# -------------------------------------------------------------------------------------------------- looking


@any_store
def test_the_trail_is_read_newest_first_sealed_or_not(app: Treadle, clock: FakeClock) -> None:
    for number in range(6):
        acted(app, tenant=("acme", "globex")[number % 2], actor=f"a{number}")
        clock.advance(seconds=40)
        if number == 2:
            app.seal_audit()
    assert [line.actor for line in app.audit()] == ["a5", "a4", "a3", "a2", "a1", "a0"]
    assert [line.actor for line in app.audit(limit=4)] == ["a5", "a4", "a3", "a2"]
    assert [line.actor for line in app.audit(limit=1)] == ["a5"]
    assert [line.actor for line in app.audit(tenant="acme", limit=2)] == ["a4", "a2"]
    assert app.audit(tenant="nobody") == []


@any_store
def test_the_newest_lines_are_found_whichever_seal_was_made_last(
    make_app: Callable[..., Treadle], clock: FakeClock
) -> None:
    app = make_app(audit="everything")
    acted(app, tenant="globex", actor="early")
    clock.advance(seconds=30)
    register(app).using(tenant="acme").enqueue_many([()] * AT_ONCE)
    sealer(app).seal_due()  # a full seal of acme's, while globex's one line is not ripe
    clock.advance(seconds=30)
    sealer(app).seal_due()
    assert {line.tenant for line in app.audit(limit=1)} == {"acme"}


# -------------------------------------------------------------------------------------------------- sealing


@any_store
def test_lines_are_sealed_when_they_fill_a_seal_or_have_waited(app: Treadle, clock: FakeClock) -> None:
    acted(app, 3)
    chores = sealer(app)
    chores.seal_due()
    clock.advance(seconds=MAX_WAIT - 1)
    chores.seal_due()
    assert app.verify_audit() == ([], 3)
    clock.advance(seconds=1)
    acted(app, 1)  # too young by itself, but it goes with the others
    chores.seal_due()
    trail = app.verify_audit()
    [found] = trail.tenants
    assert (found.tenant, found.seals, found.events, found.problems) == ("acme", 1, 4, [])
    assert (trail.unsealed, trail.sound) == (0, True)


def test_a_full_seal_is_made_at_once_and_the_rest_waits(make_app: Callable[..., Treadle]) -> None:
    app = make_app(audit="everything")
    register(app).using(tenant="acme").enqueue_many([()] * (2 * AT_ONCE + 5))
    sealer(app).seal_due()
    trail = app.verify_audit()
    assert [(found.seals, found.events) for found in trail.tenants] == [(2, 2 * AT_ONCE)]
    assert trail.unsealed == 5
    assert app.seal_audit() == 5


@any_store
def test_each_tenant_has_a_chain_of_its_own(app: Treadle, clock: FakeClock) -> None:
    for _ in range(3):
        acted(app, 2, "acme")
        acted(app, 1, "globex")
        app.pause(everything=True)  # the house's own
        assert app.seal_audit() == 4
        clock.advance(minutes=5)
    assert {found.tenant: (found.seals, found.events) for found in app.verify_audit().tenants} == {
        "*": (3, 3), "acme": (3, 6), "globex": (3, 3),
    }  # fmt: skip
    seals = {(seal.tenant, seal.number): seal for seal in app.engine.records(Seal)}
    for tenant in ("*", "acme", "globex"):
        assert seals[tenant, 1].previous == ""
        assert seals[tenant, 2].previous == seals[tenant, 1].hash
        assert seals[tenant, 3].previous == seals[tenant, 2].hash
    assert seals["acme", 1].hash != seals["globex", 1].hash


@any_store
def test_workers_that_seal_at_once_make_one_sound_chain(make_app: Callable[..., Treadle], clock: FakeClock) -> None:
    apps = [make_app() for _ in range(4)]
    chores = [sealer(app) for app in apps]
    for round_ in range(4):
        acted(apps[0], 2)
        acted(apps[0], 2, "globex")
        clock.advance(minutes=2)
        race(4, lambda place: chores[place].seal_due())
        if round_ % 2:
            chores[0].seal_due()
    apps[0].seal_audit()
    trail = apps[0].verify_audit()
    assert trail.sound, trail
    assert [(found.tenant, found.events) for found in trail.tenants] == [("acme", 8), ("globex", 8)]
    assert trail.unsealed == 0


def test_sealing_all_there_is_comes_to_an_end_and_says_how_much_it_was(make_app: Callable[..., Treadle]) -> None:
    app = make_app(audit="everything")
    assert app.seal_audit() == 0
    register(app).using(tenant="acme").enqueue_many([()] * 200)
    acted(app, 1, "globex")
    assert app.seal_audit() == 201
    assert app.seal_audit() == 0
    assert app.verify_audit().unsealed == 0


# ------------------------------------------------------------------------------------------------ tampering


class Tampering:
    """Somebody with rights in the database."""

    def __init__(self, app: Treadle, url: str) -> None:
        if url.startswith("sqlite"):
            import sqlite3

            self._connection = sqlite3.connect(Path(url.removeprefix("sqlite:///")), isolation_level=None)
            self._prefix = "treadle_"
        else:
            import psycopg

            server, _, schema = url.partition("?schema=")
            self._connection = psycopg.connect(server, autocommit=True)
            self._prefix = f"{schema}."

    def run(self, sql: str) -> None:
        """Run SQL in which a table is written as {events}."""
        tables = {name: f"{self._prefix}{name}" for name in ("events", "seals")}
        self._connection.execute(sql.format(**tables))

    def close(self) -> None:
        self._connection.close()


@sql_stores
@pytest.mark.parametrize(
    ("deed", "found"),
    [
        ("update {events} set note = 'nothing happened' where note like '%ada 3%'", "edited or moved"),
        ("update {events} set actor = 'mallory' where note like '%ada 3%'", "edited or moved"),
        ("update {events} set kind = 'resumed' where note like '%ada 3%'", "edited or moved"),
        ("update {events} set revision = 99 where note like '%ada 3%'", "edited or moved"),
        ("update {events} set seal = null where note like '%ada 3%'", "1 of its 2 events are gone"),
        ("update {events} set seal = 1 where note like '%ada 3%'", "events were added"),
        ("update {events} set tenant = 'globex' where note like '%ada 3%'", "1 of its 2 events are gone"),
        ("delete from {events} where note like '%ada 3%'", "1 of its 2 events are gone"),
        ("delete from {events} where seal = 2", "2 of its 2 events are gone"),
        ("delete from {seals} where number = 1", "seal 1 is missing"),
        ("delete from {seals} where number = 2", "seal 2 is missing"),
        ("delete from {seals} where number = 3", "2 events were sealed, and the seal is gone"),
        ("delete from {seals}", "6 events were sealed, and the seal is gone"),
        ("update {events} set seal = 99 where note like '%ada 3%'", "1 event was sealed, and the seal is gone"),
        ("update {seals} set events = 1 where number = 2", "seal 2 was edited"),
        ("update {seals} set digest = '' where number = 2", "seal 2 was edited"),
        ("update {seals} set previous = '' where number = 2", "seal 2"),
        ("update {events} set kind = 'never happened' where note like '%ada 3%'", "seal 2"),
    ],
)
def test_what_is_done_to_the_rows_is_found(
    app: Treadle, store_url: str, clock: FakeClock, deed: str, found: str
) -> None:
    for number in range(6):
        app.pause(tenant="acme", queue="mail", actor="ada", reason=f"ada {number}")
        clock.advance(seconds=1)
        if number % 2:
            app.seal_audit()
    assert app.verify_audit().sound
    tampering = Tampering(app, store_url)
    try:
        tampering.run(deed)
    finally:
        tampering.close()
    trail = app.verify_audit()
    assert not trail.sound
    assert any(found in problem for tenant in trail.tenants for problem in tenant.problems), trail


@sql_stores
def test_lines_whose_seal_is_gone_are_still_shown(app: Treadle, store_url: str) -> None:
    acted(app, 3)
    app.seal_audit()
    before = app.audit()
    tampering = Tampering(app, store_url)
    try:
        tampering.run("delete from {seals}")
    finally:
        tampering.close()
    assert len(before) == 3
    assert app.audit() == before
    assert app.seal_audit() == 0  # what was sealed is not sealed again, as it may be now


@sql_stores
def test_lines_that_changed_places_are_found(app: Treadle, store_url: str, clock: FakeClock) -> None:
    app.pause(tenant="acme", queue="mail", actor="ada")
    clock.advance(seconds=1)
    app.resume(tenant="acme", queue="mail", actor="bob")
    app.seal_audit()
    tampering = Tampering(app, store_url)
    try:
        tampering.run(
            "update {events} set at = t.last - ({events}.at - t.first)"
            " from (select max(at) as last, min(at) as first from {events}) as t"
        )
    finally:
        tampering.close()
    assert [line.actor for line in app.audit()] == ["ada", "bob"]
    assert not app.verify_audit().sound


@sql_stores
def test_what_it_cannot_know_is_said_of_nobody(app: Treadle, store_url: str, clock: FakeClock) -> None:
    """The last seal gone with its events, and events that were never sealed: only a hash kept elsewhere tells."""
    acted(app, 2)
    app.seal_audit()
    clock.advance(minutes=5)
    acted(app, 2)
    app.seal_audit()
    clock.advance(minutes=5)
    acted(app, 1)
    [before] = app.verify_audit().tenants
    tampering = Tampering(app, store_url)
    try:
        tampering.run("delete from {events} where seal = 2 or seal is null")
        tampering.run("delete from {seals} where number = 2")
    finally:
        tampering.close()
    trail = app.verify_audit()
    assert (trail.sound, trail.unsealed) == (True, 0)
    assert trail.tenants[0].hash != before.hash
    acted(app, 1)
    app.seal_audit()
    assert app.verify_audit().sound
    assert app.verify_audit().tenants[0].hash != before.hash


# ------------------------------------------------------------------------------------------------- its age


@any_store
def test_the_trail_of_a_job_outlives_it(app: Treadle, send: Task, clock: FakeClock) -> None:
    job = send.using(retry=ONCE).enqueue("nobody")
    run_until_idle(app)
    clock.advance(days=31)
    assert app.prune() == 1
    with pytest.raises(JobNotFound):
        app.get(job.id)
    assert app.events(job.id) == app.audit()
    [line] = app.audit()
    assert (line.job_id, line.kind) == (job.id, EventKind.FAILED)


@any_store
def test_sealed_lines_are_deleted_when_their_time_is_over_and_their_seals_stay(
    make_app: Callable[..., Treadle], clock: FakeClock
) -> None:
    app = make_app(keep_audit="30d")
    for _ in range(3):
        acted(app, 2)
        app.seal_audit()
        clock.advance(days=10)
    acted(app, 1)
    clock.advance(days=9)
    assert app.prune() == 0
    trail = app.verify_audit()
    [found] = trail.tenants
    assert (found.seals, found.pruned, found.events, found.problems) == (3, 1, 4, [])
    assert len(app.audit()) == 5
    assert trail.unsealed == 1


@any_store
@pytest.mark.parametrize(("days", "left"), [(89, 3), (91, 0)])
def test_any_worker_forgets_old_lines_and_never_one_that_is_not_sealed(
    app: Treadle, clock: FakeClock, days: int, left: int
) -> None:
    acted(app, 3)
    chores = Pruning(app.engine, WorkerConfig("h1", keep_audit=timedelta(days=90)), (), logging.getLogger("test"))
    clock.advance(days=days)
    chores.forget()
    assert len(app.audit()) == 3
    sealer(app).seal_due()
    chores.forget()
    assert len(app.audit()) == left
    assert app.verify_audit().sound


def test_a_trail_that_is_kept_for_ever_is(make_app: Callable[..., Treadle], clock: FakeClock) -> None:
    app = make_app(profile=tenant_ops.PROFILE)
    acted(app, 2)
    app.seal_audit()
    clock.advance(days=10_000)
    app.prune()
    assert len(app.audit()) == 2


def test_a_trail_is_sound_whatever_the_setting_says_later(make_app: Callable[..., Treadle], clock: FakeClock) -> None:
    """Lines were deleted when their time was over; that they would be kept longer today is no tampering."""
    app = make_app(keep_audit="1d")
    acted(app, 2)
    app.seal_audit()
    clock.advance(days=2)
    app.prune()
    assert make_app(keep_audit="90d").verify_audit().sound
    assert make_app(keep_audit="forever").verify_audit().sound


# ------------------------------------------------------------------------------------------ a handler's own words


def test_what_handlers_say_does_not_reach_the_trail_but_their_errors_do(app: Treadle) -> None:
    def secret(ctx: Context) -> str:
        ctx.progress(0.5, "token abc")
        raise RuntimeError("boom")

    job: Job = app.register("secret", secret, retry=ONCE).enqueue()
    run_until_idle(app)
    told = json.dumps([line.note for line in app.events(job.id)])
    assert "boom" in told
    assert "abc" not in told


# ------------------------------------------------------------------------------------------ filters and pages


@any_store
def test_an_operators_act_is_found_behind_a_flood_of_failures(app: Treadle, send: Task, clock: FakeClock) -> None:
    quiet = send.enqueue("ada")
    app.cancel(quiet.id, actor="grace", reason="not now")
    app.pause(queue="mail", actor="grace")
    clock.advance(minutes=1)
    for _ in range(3):
        send.using(retry=ONCE).enqueue_many([("nobody",)] * 40)
        run_until_idle(app)
        clock.advance(minutes=1)
        app.seal_audit()
    send.using(retry=ONCE).enqueue("nobody")
    run_until_idle(app)

    assert [line.kind for line in app.audit(actor="grace")] == [EventKind.PAUSED, EventKind.CANCELLED]
    assert [line.job_id for line in app.audit(kind="cancelled")] == [quiet.id]
    assert [line.note for line in app.audit(job_id=quiet.id.upper())] == ["not now"]
    assert len(app.audit(kind=EventKind.FAILED, since="90s", limit=1000)) == 41
    assert len(app.audit(until="3m30s", limit=1000)) == 2

    whole = app.audit(limit=1000)
    assert len(whole) == 2 + 121
    seen, cursor = [], None
    while True:
        page = app.audit_page(limit=50, cursor=cursor)
        seen += page.events
        if (cursor := page.cursor) is None:
            break
    assert seen == whole
    failures = app.audit_page(kind="failed", limit=121)
    assert (len(failures.events), failures.cursor) == (121, None)


@pytest.mark.parametrize("cursor", ["soon", "2026-01-01T00:00:00+00:00_x_y", "_", 5])
def test_a_cursor_that_is_not_ours_is_refused(app: Treadle, cursor: object) -> None:
    with pytest.raises(InvalidJob, match="cursor"):
        app.audit_page(cursor=cursor)  # type: ignore[arg-type]


@any_store
def test_a_page_reads_few_of_the_events_that_wait_for_a_seal(
    make_app: Callable[..., Treadle], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app(audit="everything")
    register(app).using(tenant="acme").enqueue_many([()] * 200)
    whole = app.audit(limit=500)
    read, unsealed = [], app.engine.unsealed

    def counted(**asked: Any) -> list[Event]:
        found = unsealed(**asked)
        read.append(len(found))
        return found

    monkeypatch.setattr(app.engine, "unsealed", counted)
    first = app.audit_page(limit=5)
    assert (first.events, read) == (whole[:5], [20])
    second = app.audit_page(limit=5, cursor=first.cursor)
    assert (second.events, read) == (whole[5:10], [20, 20])
    assert app.audit(limit=5, kind="retried") == []
    assert read[2:] == [20, 40, 80, 60]
