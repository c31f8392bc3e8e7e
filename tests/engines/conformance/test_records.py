"""The rows beside the jobs: saved by compare-and-set, with their audit line and, of a schedule, the job of a tick.

Promise 9, the engine's part: a schedule fires once per nominal time, for tick and job are one atom.
"""

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.support.making import a_job, claim, current, ended, enqueued, race, several
from treadle.engines.values import OVERWRITE, JobFilter, Saved, ScheduleFilter
from treadle.errors import EngineError
from treadle.model import PAYLOAD_CAP, Event, EventKind, FollowUp, OnEnd, Scope, State
from treadle.model.records import ANY, GONE, Misfire, Overlap, Pause, Schedule, Seal, WorkerInfo, subject
from treadle.model.retry import Retry

MINUTE = timedelta(minutes=1)
ROUNDS = 50


def a_schedule(now, **fields):
    """A schedule of task `greet` that is due now and once a minute."""
    return Schedule(**{"name": "tick", "task": "greet", "created_at": now, "every": 60.0, "next_at": now, **fields})


def a_pause(now, **fields):
    return Pause(**{"tenant": "acme", "actor": "ann", "reason": "maintenance", "at": now, **fields})


def a_member(now, **fields):
    given = {"name": "w1", "host": "here", "pid": 7, "queues": ["default"], "lanes": None, "tasks": {"greet": 1}}
    given |= {"concurrency": 4, "running": 0, "stopping": False, "started_at": now, "seen_at": now, "period": 10.0}
    return WorkerInfo(**{**given, **fields})


def a_seal(now, **fields):
    given = {"tenant": "acme", "number": 1, "events": 0, "first_at": now, "last_at": now, "digest": "d", "previous": ""}
    return Seal(**{**given, "hash": "h", "sealed_at": now, **fields})


NOTE = {a_schedule: "lane", a_pause: "reason", a_member: "host", a_seal: "digest"}  # a field that is no part of the key
EVERY = {"schedule": a_schedule, "pause": a_pause, "worker": a_member, "seal": a_seal}
REVISED = {"schedule": a_schedule, "pause": a_pause}
every_kind = pytest.mark.parametrize("make", EVERY.values(), ids=EVERY)
every_revised_kind = pytest.mark.parametrize("make", REVISED.values(), ids=REVISED)


def a_line(record, now, kind=EventKind.CHANGED):
    """An audit line of what ann does to a record."""
    return Event(subject(record), getattr(record, "revision", 0), now, kind, "ann", "why ☃", "acme")


def saved(engine, record):
    """This record, newly stored."""
    assert engine.save(record, before=None) == Saved(done=True)
    return record


def changed(record, **fields):
    """The record's next revision."""
    return record.evolve(revision=record.revision + 1, **fields)


def stored(engine, record):
    """What the store has under this record's kind."""
    return engine.records(type(record))


# ------------------------------------------------------------------------------------------------ saving


@every_kind
def test_a_record_that_was_saved_is_there_as_it_was_given(engine, clock, make):
    record = saved(engine, make(clock.now()))

    assert stored(engine, record) == [record]


@every_kind
def test_a_save_without_a_before_creates_only_where_there_is_none(engine, clock, make):
    record = saved(engine, make(clock.now()))
    other = record._replace(
        **{name: "another" for name in ("lane", "reason", "host", "digest") if name in record._fields}
    )

    assert engine.save(record, before=None) == Saved(done=False)
    assert engine.save(other, before=None, event=a_line(other, clock.now())) == Saved(done=False)
    assert stored(engine, record) == [record]
    assert engine.events(subject(record)) == []


@every_revised_kind
def test_a_save_is_done_if_the_record_is_still_the_one_that_was_read(engine, clock, make):
    first = saved(engine, make(clock.now()))
    second = changed(first)

    assert engine.save(second, before=first) == Saved(done=True)
    assert stored(engine, first) == [second]


@every_revised_kind
def test_a_save_over_a_newer_revision_is_not_done_and_leaves_no_trace(engine, clock, make):
    first = saved(engine, make(clock.now()))
    second = changed(first)
    engine.save(second, before=first, event=a_line(second, clock.now()))
    late = changed(first, **{NOTE[make]: "late"})

    assert engine.save(late, before=first, event=a_line(late, clock.now())) == Saved(done=False)
    assert stored(engine, first) == [second]
    assert engine.events(subject(first)) == [a_line(second, clock.now())]


@every_revised_kind
def test_a_save_over_a_record_that_is_gone_is_not_done_and_brings_nothing_back(engine, clock, make):
    first = saved(engine, make(clock.now()))
    engine.drop(first)

    assert engine.save(changed(first), before=first) == Saved(done=False)
    assert stored(engine, first) == []


@pytest.mark.parametrize(
    "plainly",
    [{"enabled": False}, {"next_at": None}, {"next_at": datetime(2026, 1, 2, tzinfo=UTC)}],
    ids=["disabled", "next_at taken away", "next_at moved"],
)
def test_a_schedule_that_somebody_changed_without_a_new_revision_is_another_one(engine, clock, plainly):
    read = saved(engine, a_schedule(clock.now()))
    edited = read.evolve(**plainly)
    engine.save(edited, before=OVERWRITE)

    assert engine.save(changed(read), before=read) == Saved(done=False)
    assert stored(engine, read) == [edited]
    assert engine.save(changed(edited), before=edited) == Saved(done=True)


@pytest.mark.parametrize("next_at", [None, datetime(2026, 1, 2, tzinfo=UTC)])
def test_a_schedule_without_a_next_time_is_compared_like_any_other(engine, clock, next_at):
    read = saved(engine, a_schedule(clock.now(), next_at=None))
    engine.save(read.evolve(next_at=next_at), before=OVERWRITE)

    assert engine.save(changed(read), before=read).done == (next_at is None)


@every_kind
def test_a_save_whatever_is_there_creates_and_replaces(engine, clock, make):
    record = make(clock.now())
    later = record._replace(**{name: clock.now() + MINUTE for name in record._fields if name in ("at", "seen_at")})

    assert engine.save(record, before=OVERWRITE) == Saved(done=True)
    assert engine.save(later, before=OVERWRITE, event=a_line(later, clock.now())) == Saved(done=True)
    assert stored(engine, record) == [later]
    assert engine.events(subject(record)) == [a_line(later, clock.now())]


@every_kind
def test_the_line_of_a_save_is_written_with_it(engine, clock, make):
    record = make(clock.now())
    line = a_line(record, clock.now(), EventKind.CREATED)

    assert engine.save(record, before=None, event=line).done
    assert engine.events(subject(record)) == [line]


def test_a_line_that_no_store_takes_stops_its_record_and_its_job(engine, clock):
    record, job = a_schedule(clock.now()), a_job(clock.now())
    line = a_line(record, clock.now())._replace(note="half \ud800")

    with pytest.raises((ValueError, EngineError)):
        engine.save(record, before=None, event=line, job=job)

    assert stored(engine, record) == []
    assert engine.events(subject(record)) == []
    assert engine.get([job.id]) == [None]


# ------------------------------------------------------------------------------------- reading and dropping


def test_records_of_different_kinds_do_not_meet(engine, clock):
    now = clock.now()
    records = [a_schedule(now, name="x", tenant="x"), a_pause(now, tenant="x"), a_member(now, name="x")]
    records.append(a_seal(now, tenant="x"))
    for record in records:
        saved(engine, record)

    for record in records:
        assert stored(engine, record) == [record]


NAMES = ("a", "B", "a!", "a#", "a/", "a|b", "ab", "a b", "10", "9", "é", "z", "～", "𝄞", "*")


def test_schedules_come_in_the_order_of_tenant_and_name(engine, clock):
    made = [a_schedule(clock.now(), tenant=tenant, name=name) for tenant in NAMES[:6] for name in NAMES]
    for schedule in reversed(made):
        saved(engine, schedule)

    assert engine.records(Schedule) == sorted(made, key=lambda schedule: (schedule.tenant, schedule.name))


def test_pauses_come_in_the_order_of_tenant_queue_and_task(engine, clock):
    made = [a_pause(clock.now(), tenant=t, queue=q, task=k) for t in ("a", "a!", ANY) for q in "Ba" for k in ("é", ANY)]
    for pause in reversed(made):
        saved(engine, pause)

    assert engine.records(Pause) == sorted(made, key=lambda pause: pause[:3])


def test_workers_come_in_the_order_of_their_names(engine, clock):
    made = [a_member(clock.now(), name=name) for name in NAMES]
    for member in made:
        saved(engine, member)

    assert engine.records(WorkerInfo) == sorted(made)


def test_seals_come_in_the_order_of_tenant_and_number(engine, clock):
    made = [a_seal(clock.now(), tenant=t, number=n) for t in ("a", "a!", "B") for n in (1, 2, 9, 10, 11, 100)]
    for seal in reversed(made):
        saved(engine, seal)

    assert engine.records(Seal) == sorted(made, key=lambda seal: (seal.tenant, seal.number))


def test_the_names_in_a_key_do_not_run_into_each_other(engine, clock):
    pieces = ("a", "a/b", "b/c", "a#b", "b#c", "a|b", "b|c", "a:b", "b:c", "c")
    made = [a_pause(clock.now(), tenant=t, queue=q, task="*") for t in pieces for q in pieces]
    for pause in made:
        saved(engine, pause)

    assert engine.records(Pause) == sorted(made, key=lambda pause: pause[:3])


@pytest.mark.parametrize("make", [a_schedule, a_pause, a_seal], ids=["schedule", "pause", "seal"])
def test_records_of_one_tenant_are_read_alone(engine, clock, make):
    made = {tenant: saved(engine, make(clock.now(), tenant=tenant)) for tenant in ("a", "aa", "a!", "A", "b")}

    for tenant, record in made.items():
        assert engine.records(type(record), tenant=tenant) == [record]
    assert engine.records(type(record), tenant="nobody") == []


def test_a_schedule_is_read_alone_by_its_tenant_and_name(engine, clock):
    large = a_schedule(clock.now(), tenant="acme", name="large", payload=f'"{"x" * 500_000}"')
    wanted = [a_schedule(clock.now(), tenant="acme", name=name) for name in ("a", "b", "a#b", "a%", "long " * 30)]
    for schedule in [*wanted, large, a_schedule(clock.now(), tenant="globex", name="a")]:
        saved(engine, schedule)

    for schedule in [*wanted, large]:
        [found] = engine.records(Schedule, tenant="acme", name=schedule.name)
        assert found in stored(engine, schedule)
        assert found.name == schedule.name
    for name in ("c", "", "a#", "x" * 5000, "half \ud800", "nul \0"):
        assert engine.records(Schedule, tenant="acme", name=name) == []


def test_hundreds_of_records_are_read_at_once(engine, clock):
    payload = {"text": "x" * 10_000}  # several pages of what a server sends at once
    made = [saved(engine, a_schedule(clock.now(), name=f"s{n:03}", payload=payload)) for n in range(300)]

    assert engine.records(Schedule) == made


@every_kind
def test_a_record_is_dropped_once(engine, clock, make):
    record = saved(engine, make(clock.now()))
    line = a_line(record, clock.now(), EventKind.DELETED)

    assert engine.drop(record, event=line)
    assert not engine.drop(record, event=line._replace(revision=9))
    assert stored(engine, record) == []
    assert engine.events(subject(record)) == [line]


@every_revised_kind
def test_a_record_of_another_revision_is_not_dropped(engine, clock, make):
    first = saved(engine, make(clock.now()))
    second = changed(first)
    engine.save(second, before=first)

    assert not engine.drop(first, event=a_line(first, clock.now(), EventKind.DELETED))
    assert stored(engine, first) == [second]
    assert engine.events(subject(first)) == []
    assert engine.drop(second)


def test_dropping_one_record_leaves_its_neighbours(engine, clock):
    made = [saved(engine, a_schedule(clock.now(), tenant=tenant, name=name)) for tenant in "ab" for name in "xy"]

    assert engine.drop(made[1])
    assert engine.records(Schedule) == [made[0], *made[2:]]


@every_kind
def test_a_record_that_was_dropped_can_be_made_again(engine, clock, make):
    record = saved(engine, make(clock.now()))
    engine.drop(record)

    saved(engine, record)
    assert stored(engine, record) == [record]


# ---------------------------------------------------------------------------------------- every value survives

names = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=40).filter(str.strip)
words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60)
moments = st.datetimes(datetime(1970, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC))  # noqa: DTZ001
seconds = st.floats(1e-6, 1e9) | st.integers(0, 10**6).map(float)
periods = st.floats(1e-6, 1e9) | st.integers(1, 10**6).map(float)  # a timeout of nothing is refused by the store
numbers = st.integers(0, 2**31 - 1)
scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(-1e300, 1e300) | words
payloads = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3))


def maybe(strategy):
    return st.none() | strategy


retries = st.builds(Retry, st.integers(1, 10_000), seconds, maybe(seconds), seconds)
follow_ups = st.builds(
    FollowUp, event=words, task=words, queue=names, lane=words, priority=numbers, version=numbers, retry=retries,
    timeout=maybe(seconds), wants=maybe(st.lists(names)), exhausted=words, alone=st.booleans(), on_end=st.none(),
)  # fmt: skip


def schedules(**timing):
    return st.builds(
        Schedule, name=names, task=names, created_at=moments, tenant=names, payload=payloads, timezone=names,
        enabled=st.booleans(), queue=names, lane=st.just("") | names, priority=st.integers(-(2**31), 2**31 - 1),
        task_version=numbers, max_attempts=st.integers(1, 10_000), retry_base=seconds, retry_cap=maybe(seconds),
        retry_jitter=seconds, timeout=maybe(periods), misfire=st.sampled_from(Misfire), misfire_limit=numbers,
        misfire_age=seconds, overlap=st.sampled_from(Overlap), jitter=seconds, for_each=maybe(names),
        next_at=maybe(moments), last_at=maybe(moments), last_job=maybe(st.uuids().map(str)), declared=maybe(names),
        updated_at=maybe(moments), revision=numbers, own_id=maybe(st.uuids().map(str)),
        on_end=maybe(st.builds(OnEnd, maybe(follow_ups), maybe(follow_ups))), **timing,
    )  # fmt: skip


VALUES = {
    "schedule": schedules(cron=names, every=st.none()) | schedules(cron=st.none(), every=periods),
    "pause": st.builds(
        Pause, tenant=names, queue=names, task=names, actor=words, reason=words, at=maybe(moments),
        until=maybe(moments), revision=numbers,
    ),
    "worker": st.builds(
        WorkerInfo, name=names, host=words, pid=numbers, queues=st.lists(names), lanes=maybe(st.lists(words)),
        tasks=st.dictionaries(names, numbers), concurrency=numbers, running=numbers, stopping=st.booleans(),
        started_at=moments, seen_at=moments, period=seconds,
    ),
    "seal": st.builds(
        Seal, tenant=names, number=numbers, events=numbers, first_at=moments, last_at=moments, digest=words,
        previous=words, hash=words, sealed_at=moments, pruned_at=maybe(moments),
    ),
}  # fmt: skip


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_every_value_of_every_field_survives_the_store(engine, engine_kind, values):
    examples = 60 if engine_kind == "sqlite" else 25

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],  # a server is too slow to shrink by
        suppress_health_check=list(HealthCheck),
    )
    @given(values)
    def survives(record):
        assert engine.save(record, before=OVERWRITE).done
        assert stored(engine, record) == [record]
        # A value that is read back a little differently could never be changed or dropped again.
        assert engine.save(record, before=record).done
        assert engine.drop(record)

    survives()


def test_a_payload_as_large_as_allowed_survives_and_fires(engine, clock):
    text = "x" * (PAYLOAD_CAP - 2)
    schedule = saved(engine, a_schedule(clock.now(), payload=text))
    job = a_job(clock.now(), payload_json=f'"{text}"')

    fired = engine.save(changed(schedule, last_at=clock.now()), before=schedule, job=job)

    assert (fired.done, fired.receipt.created) == (True, True)
    assert stored(engine, schedule) == [changed(schedule, last_at=clock.now())]
    assert current(engine, job).payload == text


# ----------------------------------------------------------------------------------------------------- races


@every_revised_kind
def test_of_two_savers_at_once_exactly_one_is_done(make_engine, clock, make):
    engines = several(make_engine, 2)
    record = saved(engines[0], make(clock.now()))
    for _ in range(ROUNDS):
        wanted = [changed(record, **{NOTE[make]: f"by {place}"}) for place in (0, 1)]
        answers = race(2, lambda at, was=record, wanted=wanted: engines[at].save(wanted[at], before=was).done)

        assert sorted(answers) == [False, True]
        [record] = stored(engines[0], record)
        assert record == wanted[answers.index(True)]


@every_kind
def test_of_two_makers_at_once_exactly_one_is_done(make_engine, clock, make):
    engines = several(make_engine, 2)
    key = {a_schedule: "name", a_pause: "task", a_member: "name", a_seal: "tenant"}[make]
    for number in range(ROUNDS):
        record = make(clock.now(), **{key: f"n{number}"})
        answers = race(2, lambda at, record=record: engines[at].save(record, before=None).done)

        assert sorted(answers) == [False, True]
    assert len(stored(engines[0], record)) == ROUNDS


def test_of_a_saver_and_a_dropper_at_once_exactly_one_is_done(make_engine, clock):
    engines = several(make_engine, 2)
    for _ in range(ROUNDS):
        record = saved(engines[0], a_schedule(clock.now()))
        acts = [lambda was: engines[0].save(changed(was), before=was).done, engines[1].drop]
        answers = race(2, lambda at, acts=acts, record=record: acts[at](record))

        assert sorted(answers) == [False, True]
        left = stored(engines[0], record)
        assert left == ([changed(record)] if answers[0] else [])
        for one in left:
            engines[0].drop(one)


# ---------------------------------------------------------------------------------------------------- firing


def fire(engine, schedule, job):
    """Make the job of the schedule's next tick, as upkeep does."""
    tick = schedule.next_at
    after = changed(schedule, next_at=tick + MINUTE, last_at=tick, last_job=job.id)
    return after, engine.save(after, before=schedule, event=a_line(after, tick), job=job)


def test_a_save_with_a_job_makes_it_with_the_tick(engine, clock):
    schedule = saved(engine, a_schedule(clock.now()))
    job = a_job(clock.now(), schedule="tick", queue="mail", due_at=clock.now() + MINUTE)

    after, fired = fire(engine, schedule, job)

    assert fired.done
    assert (fired.receipt.job, fired.receipt.created, fired.receipt.refused) == (job, True, "")
    assert stored(engine, schedule) == [after]
    assert current(engine, job) == job
    assert claim(engine, queues=["mail"]) == []
    clock.advance(minutes=1)
    assert [got.schedule for got in claim(engine, queues=["mail"])] == ["tick"]


def test_the_job_of_a_tick_arrives_by_the_stores_clock(engine, clock):
    schedule = saved(engine, a_schedule(clock.now()))
    job = a_job(clock.now() - MINUTE)

    _, fired = fire(engine, schedule, job)

    assert (fired.receipt.job.created_at, fired.receipt.job.due_at) == (clock.now(), clock.now())
    assert current(engine, job) == fired.receipt.job


@pytest.mark.parametrize("audit_all", [False, True], ids=["by default", "on request"])
def test_the_job_of_a_tick_leaves_a_line_on_request(make_engine, clock, audit_all):
    engine = make_engine(audit_all=audit_all)
    schedule = saved(engine, a_schedule(clock.now()))
    job = a_job(clock.now())
    fire(engine, schedule, job)

    assert [line.kind for line in engine.events(job.id)] == [EventKind.ENQUEUED] * audit_all


def test_a_taken_key_makes_no_job_and_does_not_stop_the_tick(engine, clock):
    schedule = saved(engine, a_schedule(clock.now()))
    first = enqueued(engine, key="k", key_scope=Scope.ACTIVE)
    job = a_job(clock.now(), key="k", key_scope=Scope.ACTIVE)

    after, fired = fire(engine, schedule, job)

    assert fired.done
    assert (fired.receipt.job, fired.receipt.created, fired.receipt.refused) == (first, False, "")
    assert stored(engine, schedule) == [after]
    assert engine.events(subject(schedule)) == [a_line(after, clock.now())]
    assert engine.get([job.id]) == [None]


def test_the_job_of_a_tick_takes_its_key(engine, clock):
    schedule = saved(engine, a_schedule(clock.now()))
    job = a_job(clock.now(), key="k", key_scope=Scope.ACTIVE)
    fire(engine, schedule, job)

    assert enqueued(engine, key="k", key_scope=Scope.ACTIVE).id == job.id


@pytest.mark.parametrize("state", ["pending", "finished"])
def test_a_known_id_makes_no_second_job_and_does_not_stop_the_tick(engine, clock, state):
    schedule = saved(engine, a_schedule(clock.now()))
    job = enqueued(engine) if state == "pending" else ended(engine, State.SUCCEEDED)

    after, fired = fire(engine, schedule, a_job(clock.now(), id=job.id, payload_json='"second"'))

    assert fired.done
    assert (fired.receipt.job, fired.receipt.created, fired.receipt.refused) == (job, False, "")
    assert stored(engine, schedule) == [after]
    assert current(engine, job) == job


def test_a_job_that_no_store_takes_is_refused_and_does_not_stop_the_tick(engine, clock):
    schedule = saved(engine, a_schedule(clock.now()))
    job = a_job(clock.now(), payload_json='"\ud800"')

    after, fired = fire(engine, schedule, job)

    assert fired.done
    assert not fired.receipt.created
    assert fired.receipt.refused
    assert stored(engine, schedule) == [after]
    assert engine.events(subject(schedule)) == [a_line(after, clock.now())]
    assert engine.get([job.id]) == [None]


def test_a_refused_job_leaves_its_key_free(engine, clock):
    schedule = saved(engine, a_schedule(clock.now()))
    fire(engine, schedule, a_job(clock.now(), payload_json='"\ud800"', key="k", key_scope=Scope.EVER))

    assert engine.enqueue([a_job(clock.now(), key="k", key_scope=Scope.EVER)])[0].created


BETWEEN = {
    "fired by another": lambda engine, was: fire(engine, was, a_job(was.created_at, queue="other")),
    "disabled": lambda engine, was: engine.save(changed(was, enabled=False), before=was),
    "disabled by hand": lambda engine, was: engine.save(was.evolve(enabled=False), before=OVERWRITE),
    "dropped": lambda engine, was: engine.drop(was),
    "edited": lambda engine, was: engine.save(changed(was, task="another"), before=was),
    "moved by hand": lambda engine, was: engine.save(was.evolve(next_at=was.next_at + MINUTE), before=OVERWRITE),
}


@pytest.mark.parametrize("between", BETWEEN.values(), ids=BETWEEN)
def test_a_schedule_that_changed_since_it_was_read_does_not_fire(engine, clock, between):
    schedule = saved(engine, a_schedule(clock.now()))
    between(engine, schedule)
    left, told = stored(engine, schedule), engine.events(subject(schedule))
    job = a_job(clock.now(), key="k", key_scope=Scope.EVER)

    _, fired = fire(engine, schedule, job)

    assert fired == Saved(done=False)
    assert stored(engine, schedule) == left
    assert engine.events(subject(schedule)) == told
    assert engine.get([job.id]) == [None]
    assert engine.enqueue([a_job(clock.now(), key="k", key_scope=Scope.EVER)])[0].created


@pytest.mark.slow
def test_eight_racers_make_exactly_one_job_a_tick(make_engine, clock):
    engines = several(make_engine, 2)
    first = saved(engines[0], a_schedule(clock.now()))
    end = first.next_at + ROUNDS * MINUTE

    def fire_all(place):
        engine, made = engines[place % 2], []
        while True:
            [schedule] = engine.records(Schedule)
            if schedule.next_at == end:
                return made
            job = a_job(clock.now(), payload_json=f'"{schedule.next_at.isoformat()}"')
            _, fired = fire(engine, schedule, job)
            if fired.done:
                assert fired.receipt.created
                made.append((schedule.next_at, job.id))

    made = [one for racer in race(8, fire_all) for one in racer]

    assert sorted(tick for tick, _ in made) == [first.next_at + number * MINUTE for number in range(ROUNDS)]
    jobs = engines[0].find(JobFilter(), limit=1000).jobs
    assert sorted(job.id for job in jobs) == sorted(id_ for _, id_ in made)
    assert set(Counter(job.payload for job in jobs).values()) == {1}
    assert [line.revision for line in engines[0].events(subject(first))] == list(range(1, ROUNDS + 1))


def test_a_schedule_disabled_by_one_while_another_fires_either_fired_before_or_not_at_all(make_engine, clock):
    engines = several(make_engine, 2)
    for number in range(ROUNDS):
        was = saved(engines[0], a_schedule(clock.now(), name=f"s{number}"))
        job = a_job(clock.now())
        off = changed(was, enabled=False)
        acts = [lambda was=was, job=job: fire(engines[0], was, job)[1].done]
        acts.append(lambda was=was, off=off: engines[1].save(off, before=was).done)
        fired, disabled = race(2, lambda at, acts=acts: acts[at]())

        assert fired != disabled
        assert (engines[1].get([job.id]) != [None]) == fired


@pytest.mark.parametrize("same", ["id", "key"])
def test_of_a_tick_and_an_enqueue_of_one_job_at_once_one_makes_it_and_both_are_answered(make_engine, clock, same):
    engines = several(make_engine, 2)
    schedule = saved(engines[0], a_schedule(clock.now()))
    for number in range(ROUNDS):
        one = a_job(clock.now(), key=f"k{number}", key_scope=Scope.EVER)
        other = one if same == "id" else a_job(clock.now(), key=f"k{number}", key_scope=Scope.EVER)
        acts = [lambda was=schedule, one=one: fire(engines[0], was, one)[1]]
        acts.append(lambda other=other: engines[1].enqueue([other])[0])
        fired, receipt = race(2, lambda at, acts=acts: acts[at]())

        assert fired.done
        assert sorted([fired.receipt.created, receipt.created]) == [False, True]
        assert fired.receipt.job.id == receipt.job.id
        [schedule] = stored(engines[0], schedule)
    assert engines[0].count(JobFilter()) == {State.PENDING: ROUNDS}


# ------------------------------------------------------------------------------------------------------- due


def due(engine, **wish):
    return [schedule.name for schedule in engine.due(**{"limit": 100, **wish})]


def test_the_longest_due_schedule_comes_first_and_one_never_computed_before_all(engine, clock):
    ages = {"young": 1, "old": 3600, "middle": 60, "now": 0}
    for name, age in ages.items():
        saved(engine, a_schedule(clock.now(), name=name, next_at=clock.now() - timedelta(seconds=age)))
    saved(engine, a_schedule(clock.now(), name="new", next_at=None))

    assert due(engine) == ["new", "old", "middle", "young", "now"]
    assert due(engine, limit=3) == ["new", "old", "middle"]
    assert due(engine, limit=1) == ["new"]


def test_a_schedule_is_due_at_its_very_moment_and_not_before(engine, clock):
    saved(engine, a_schedule(clock.now(), next_at=clock.now() + timedelta(microseconds=1)))

    assert due(engine) == []
    clock.advance(microseconds=1)
    assert due(engine) == ["tick"]


def test_what_comes_within_some_seconds_is_found_ahead(engine, clock):
    for after in (0, 10, 11):
        saved(engine, a_schedule(clock.now(), name=str(after), next_at=clock.now() + timedelta(seconds=after)))

    assert due(engine, ahead=9.9) == ["0"]
    assert due(engine, ahead=10.0) == ["0", "10"]
    assert due(engine, ahead=60.0) == ["0", "10", "11"]


@pytest.mark.parametrize("next_at", [None, datetime(2020, 1, 1, tzinfo=UTC)])
def test_a_disabled_schedule_is_never_due(engine, clock, next_at):
    off = saved(engine, a_schedule(clock.now(), enabled=False, next_at=next_at))

    assert due(engine, ahead=1e6) == []
    engine.save(changed(off, enabled=True), before=off)
    assert due(engine) == ["tick"]


def test_a_schedule_that_fired_is_due_again_at_its_next_time(engine, clock):
    schedule = saved(engine, a_schedule(clock.now()))
    fire(engine, schedule, a_job(clock.now()))

    assert due(engine) == []
    clock.advance(minutes=1)
    assert due(engine) == ["tick"]


def test_a_schedule_that_was_dropped_is_not_due(engine, clock):
    engine.drop(saved(engine, a_schedule(clock.now())))

    assert due(engine) == []


def test_due_schedules_come_whole(engine, clock):
    schedule = saved(engine, a_schedule(clock.now(), payload={"☃": [1, None]}, timeout=2.5, overlap=Overlap.SKIP))

    assert engine.due(limit=1) == [schedule]


def test_due_ones_are_found_among_many_that_are_not(engine, clock):
    for number in range(200):
        later = clock.now() + timedelta(hours=1 + number)
        saved(engine, a_schedule(clock.now(), name=f"later {number}", next_at=later, enabled=number % 2 == 0))
    for number in range(20):
        saved(engine, a_schedule(clock.now(), name=f"due {number:02}", tenant=f"t{number % 3}"))

    assert sorted(due(engine)) == [f"due {number:02}" for number in range(20)]
    assert len(due(engine, limit=7)) == 7


# ------------------------------------------------------------------------------------------- schedules by the page


def found(engine, limit=100, after=None, **where):
    return [(one.tenant, one.name) for one in engine.find_schedules(ScheduleFilter(**where), limit=limit, after=after)]


def test_schedules_are_found_by_every_filter(engine, clock):
    at = clock.now()
    saved(engine, a_schedule(at, name="a1", tenant="acme", task="mail"))
    saved(engine, a_schedule(at, name="a2", tenant="acme", enabled=False))
    saved(engine, a_schedule(at, name="A1", tenant="bolt", declared="0123 shop"))
    saved(engine, a_schedule(at, name="b_1", tenant="bolt", declared=f"0123 shop{GONE}"))

    assert found(engine) == [("acme", "a1"), ("acme", "a2"), ("bolt", "A1"), ("bolt", "b_1")]
    assert found(engine, tenant="bolt") == [("bolt", "A1"), ("bolt", "b_1")]
    assert found(engine, name="a1") == found(engine, task="mail") == [("acme", "a1")]
    assert found(engine, prefix="a") == [("acme", "a1"), ("acme", "a2")]
    assert found(engine, prefix="b%") == found(engine, prefix="_") == found(engine, prefix="\ud800") == []
    assert found(engine, enabled=False) == [("acme", "a2")]
    assert found(engine, declared=True) == [("bolt", "A1"), ("bolt", "b_1")]
    assert found(engine, declared=False, enabled=True) == [("acme", "a1")]
    assert found(engine, gone=True) == [("bolt", "b_1")]
    assert found(engine, gone=False, tenant="bolt") == [("bolt", "A1")]
    assert found(engine, limit=2, gone=False) == [("acme", "a1"), ("acme", "a2")]


def test_schedules_are_found_after_a_place_whether_or_not_there_is_one(engine, clock):
    for name in ("a", "b", "ba", "c"):
        saved(engine, a_schedule(clock.now(), name=name, payload={"large": "☃" * 200_000 * (name == "ba")}))

    assert found(engine, after=("default", "a"), limit=2) == [("default", "b"), ("default", "ba")]
    assert found(engine, after=("default", "bb")) == [("default", "c")]
    assert found(engine, after=("default", "c")) == found(engine, after=("e", "")) == []
    [whole] = engine.find_schedules(ScheduleFilter(name="ba"), limit=1)
    assert len(whole.payload["large"]) == 200_000
