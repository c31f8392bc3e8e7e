"""Which tick of a schedule makes which job: what is due, what was missed, what a clock set back may not do twice."""

import json
import math
import time
from datetime import UTC, datetime, timedelta
from itertools import count, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.sizes import size
from treadle.errors import ConfigError, InvalidJob, TreadleError
from treadle.model import FollowUp, OnEnd, Scope, State, checked
from treadle.model.records import Misfire, Overlap, Schedule
from treadle.model.retry import Retry
from treadle.schedules.cron import MOVED, ONCE
from treadle.schedules.declared import declaration
from treadle.schedules.firing import CATCH_UP_LIMIT
from treadle.schedules.rules import (
    EXPANSION,
    LATE_AFTER,
    MOST_MISFIRES,
    OLDEST_MISFIRE,
    WRONG_CLOCK,
    Firing,
    check,
    firing,
    job_of,
    job_of_row,
    next_tick,
    payload_of_row,
    preview,
    restarted,
)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECOND, MINUTE, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(days=1)
QUICK = 0.5  # seconds that no decision may take, whatever was missed


def a_schedule(**fields):
    """A schedule of every minute, next due at noon, with any field set by name."""
    given = {"name": "nightly", "task": "greet", "created_at": NOON - DAY, "next_at": NOON}
    if "every" not in fields:
        given["cron"] = "* * * * *"
    return Schedule(**{**given, **fields})


def clock(text):
    """A time of the first of January 2026."""
    return datetime.fromisoformat(f"2026-01-01T{text}+00:00")


def ticks(schedule, since, until):
    """Every tick from `since` to `until`, found one by one."""
    found, tick = [], next_tick(schedule, since - timedelta(microseconds=1))
    while tick <= until:
        found.append(tick)
        tick = next_tick(schedule, tick)
    return found


# ------------------------------------------------------------------------------------------ what is due


def test_nothing_is_due_before_its_time_and_one_run_at_it():
    schedule = a_schedule()
    assert firing(schedule, NOON - timedelta(microseconds=1)) is None
    assert firing(schedule, NOON) == Firing(NOON, NOON + MINUTE)


@pytest.mark.parametrize("next_at", [NOON, NOON - DAY, None])
def test_a_disabled_schedule_is_never_due(next_at):
    assert firing(a_schedule(enabled=False, next_at=next_at), NOON) is None


@pytest.mark.covers("002-C5.a")
@pytest.mark.parametrize("misfire", Misfire)
def test_a_schedule_whose_next_run_is_not_computed_yet_gets_it_from_now_and_makes_no_job(misfire):
    assert firing(a_schedule(next_at=None, misfire=misfire), clock("12:00:30")) == Firing(None, clock("12:01"))
    daily = a_schedule(next_at=None, cron="30 2 * * *", timezone="Europe/Berlin", misfire=misfire)
    assert firing(daily, NOON) == Firing(None, datetime(2026, 1, 2, 1, 30, tzinfo=UTC))


SKIP, ONE, ALL = Misfire.SKIP, Misfire.ONCE, Misfire.ALL


@pytest.mark.parametrize("misfire", Misfire)
@pytest.mark.parametrize("late", [0, 0.001, 1, 30, 59.999])
def test_a_run_that_is_a_little_late_is_made_whatever_the_policy(misfire, late):
    assert firing(a_schedule(misfire=misfire), NOON + timedelta(seconds=late)) == Firing(NOON, NOON + MINUTE)


@pytest.mark.parametrize(
    ("misfire", "now", "tick", "next_at"),
    [
        (SKIP, "12:01:00", None, "12:01"),
        (ONE, "12:01:00", "12:01", "12:02"),
        (ALL, "12:01:00", "12:00", "12:01"),
        (SKIP, "12:01:30", None, "12:01"),
        (ONE, "12:01:30", "12:01", "12:02"),
        (ALL, "12:01:30", "12:00", "12:01"),
        (SKIP, "13:00:30", None, "13:00"),
        (ONE, "13:00:30", "13:00", "13:01"),
        (ALL, "13:00:30", "12:00", "12:01"),
        (SKIP, "23:59:59", None, "23:59"),
        (ONE, "23:59:59", "23:59", "2026-01-02T00:00"),
        (ALL, "23:59:59", "22:20", "22:21"),
    ],
)
def test_of_runs_that_were_missed_the_policy_makes_none_the_latest_or_all(misfire, now, tick, next_at):
    wanted = datetime.fromisoformat(next_at).replace(tzinfo=UTC) if "T" in next_at else clock(next_at)
    assert firing(a_schedule(misfire=misfire), clock(now)) == Firing(tick and clock(tick), wanted)


@pytest.mark.parametrize(("misfire", "made"), [(SKIP, None), (ONE, "06:00"), (ALL, "06:00")])
def test_a_daily_run_that_is_hours_late_is_left_out_or_made(misfire, made):
    schedule = a_schedule(cron="0 6 * * *", next_at=clock("06:00"), misfire=misfire)
    assert firing(schedule, NOON) == Firing(made and clock(made), clock("06:00") + DAY)


def test_how_late_is_missed_can_be_told():
    schedule = a_schedule(misfire=SKIP)
    assert firing(schedule, clock("12:05"), late=301) == Firing(NOON, clock("12:01"))
    assert firing(schedule, clock("12:05"), late=300) == Firing(None, clock("12:01"))


@pytest.mark.parametrize(
    ("limit", "age", "first"),
    [(100, 86_400, "12:00"), (10, 86_400, "12:51"), (1, 86_400, "13:00"), (100, 600, "12:51"), (3, 600, "12:58"),
     (100, 1800.5, "12:31"), (100, 30, "13:00")],
)  # fmt: skip
def test_all_is_bounded_by_count_and_by_age(limit, age, first):
    schedule = a_schedule(misfire=ALL, misfire_limit=limit, misfire_age=age)
    made = caught_up(schedule, clock("13:00:30"))
    assert made == ticks(schedule, clock(first), clock("13:00:30"))


def test_all_makes_nothing_of_what_is_older_than_its_age():
    schedule = a_schedule(cron="0 6 * * *", next_at=clock("06:00"), misfire=ALL, misfire_age=3600)
    assert firing(schedule, NOON) == Firing(None, clock("06:00") + DAY)
    assert caught_up(schedule.evolve(misfire_age=0.0), NOON) == []


def caught_up(schedule, now, most=math.inf):
    """The ticks made into jobs while the clock stands still."""
    store = Store(schedule)
    store.fire(now, most=most)
    return store.made


# ------------------------------------------------------------------------ any number of schedulers, any clock


class Store:
    """One schedule, and the schedulers that compare-and-set it, without a database."""

    def __init__(self, schedule):
        self.schedule = schedule
        self.made = []
        self.jobs = {}

    def fire(self, now, view=None, most=math.inf):
        """One scheduler at work: on what it read earlier, or on what is there; how many ticks it made into jobs."""
        seen, before = view or self.schedule, len(self.made)
        for place in count():
            due = firing(seen, now, counted=place % CATCH_UP_LIMIT > 0) if len(self.made) - before < most else None
            if due is None:
                break
            after = seen.evolve(next_at=due.next_at, revision=seen.revision + 1)
            assert due.next_at > (due.tick or due.next_at - MINUTE)
            if due.tick is not None:
                after = after.evolve(last_at=due.tick)
            if seen != self.schedule:
                break  # somebody else was first
            if due.tick is not None:
                job = checked(job_of(seen, due.tick, now))
                assert job.id not in self.jobs, "one tick made two jobs"
                self.jobs[job.id] = due.tick
                self.made.append(due.tick)
            self.schedule = seen = after
        return len(self.made) - before


ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia", "Asia/Kathmandu")
CRONS = (
    "* * * * *", "*/7 * * * *", "0 * * * *", "59 23 * * *", "30 2 * * *", "0,30 1-3 * * *", "*/20 2 * * *",
    "0 0 * * MON", "15 6 1,15 * *", "0 12 29 2 *", "@monthly",
)  # fmt: skip
INTERVALS = (1.0, 7.0, 60.0, 90.5, 3600.0, 86_400.0, 40 * 86_400.0)

moments = st.integers(0, 6 * 366 * 86_400).map(lambda seconds: datetime(2024, 1, 1, tzinfo=UTC) + seconds * SECOND)


@st.composite
def schedules(draw):
    when = draw(st.sampled_from([{"cron": cron} for cron in CRONS] + [{"every": every} for every in INTERVALS]))
    zone, now = draw(st.sampled_from(ZONES)), draw(moments)
    policy = {
        "misfire": draw(st.sampled_from(Misfire)),
        "misfire_limit": draw(st.integers(1, 20)),
        "misfire_age": draw(st.floats(0, 7200)),
    }
    made = Schedule("n", "t", now, timezone=zone, **when, **policy)
    return made.evolve(next_at=next_tick(made, now))


spans = st.one_of(
    st.floats(0, 2 * LATE_AFTER),
    st.floats(0, 86_400),
    st.floats(0, 400 * 86_400),
    st.sampled_from([0, 1, 59.9, 60, 3600]),
)
steps = st.lists(
    st.tuples(st.sampled_from(["on", "on", "on", "back", "read", "stale", "off and on"]), st.integers(0, 2), spans),
    min_size=1,
    max_size=25,
)


@settings(max_examples=size(60, long=300), deadline=None)
@given(schedules(), steps)
def test_schedulers_make_each_tick_at_most_once_whatever_clocks_and_crashes_do(schedule, steps):
    """Three schedulers, each with what it read last; the clock goes on, leaps and is set back."""
    store, now, views = Store(schedule), schedule.created_at, [schedule] * 3
    for step, place, span in steps:
        match step:
            case "on":
                now = min(now + timedelta(seconds=span), datetime(2200, 1, 1, tzinfo=UTC))
                store.fire(now)
            case "back":
                now = max(now - timedelta(seconds=span), datetime(1980, 1, 1, tzinfo=UTC))
                store.fire(now)
            case "read":
                views[place] = store.schedule
            case "stale":
                store.fire(now, views[place])
            case "off and on":
                was = store.schedule
                if (
                    was.last_at is None or was.last_at - now < WRONG_CLOCK
                ):  # beyond, it counts from now again: see below
                    store.schedule = restarted(was.evolve(revision=was.revision + 1), now)
    assert all(one < other for one, other in pairwise(store.made))
    assert len(store.jobs) == len(store.made)
    assert all(tick == next_tick(schedule, tick - timedelta(microseconds=1)) for tick in store.made)  # none invented


@settings(max_examples=size(60, long=300), deadline=None)
@given(schedules(), st.lists(spans, min_size=1, max_size=12))
def test_a_scheduler_that_is_there_in_time_leaves_out_no_tick_and_one_that_was_away_obeys_the_policy(schedule, gaps):
    store, now = Store(schedule), schedule.created_at
    for span in gaps:
        now = min(now + timedelta(seconds=span), datetime(2200, 1, 1, tzinfo=UTC))
        due = store.schedule.next_at
        store.fire(now)
        made = store.made[-1:]
        if due > now:
            continue
        in_time = due > now - timedelta(seconds=LATE_AFTER)
        match schedule.misfire:
            case _ if in_time:
                assert due in store.made
            case Misfire.ONCE:
                assert made == [latest(schedule, now)]
            case Misfire.SKIP | Misfire.ALL:
                assert not made or made[0] <= now
        assert store.schedule.next_at == next_tick(schedule, now)  # nothing that was due is left


@settings(max_examples=size(40, long=200), deadline=None)
@given(schedules(), st.floats(LATE_AFTER, 40 * 86_400))
def test_once_makes_exactly_one_job_of_a_downtime_and_it_is_that_of_the_latest_tick(schedule, away):
    store = Store(schedule.evolve(misfire=Misfire.ONCE))
    now = schedule.next_at + timedelta(seconds=away)
    assert store.fire(now) == 1
    assert store.made == [latest(schedule, now)]
    assert store.schedule.next_at == next_tick(schedule, now)


@settings(max_examples=size(40, long=200), deadline=None)
@given(schedules(), st.floats(LATE_AFTER, 40 * 86_400))
def test_all_makes_the_newest_within_count_and_age_and_in_order(schedule, away):
    schedule = schedule.evolve(misfire=Misfire.ALL)
    now = schedule.next_at + timedelta(seconds=away)
    since = max(schedule.next_at, now - timedelta(seconds=schedule.misfire_age))
    missed = ticks(schedule, since, now)
    assert caught_up(schedule, now) == missed[-schedule.misfire_limit :]


@settings(max_examples=size(40, long=200), deadline=None)
@given(schedules(), st.floats(LATE_AFTER, 40 * 86_400))
def test_skip_makes_nothing_of_what_is_older_than_a_minute(schedule, away):
    schedule = schedule.evolve(misfire=Misfire.SKIP)
    now = schedule.next_at + timedelta(seconds=away)
    recent = ticks(schedule, now - timedelta(seconds=LATE_AFTER) + timedelta(microseconds=1), now)
    assert caught_up(schedule, now) == recent


def latest(schedule, now):
    """The last tick no later than now, found by looking further and further back."""
    for days in (1 / 1440, 1 / 24, 1, 40, 400, 2000):
        if found := ticks(schedule, now - timedelta(days=days), now):
            return found[-1]
    raise AssertionError("no tick in years")


@settings(max_examples=size(60, long=300), deadline=None)
@given(schedules(), moments, moments)
def test_restarted_never_comes_back_to_a_tick_that_was_made(schedule, last_at, now):
    again = restarted(schedule.evolve(last_at=last_at), now)
    assert again.next_at > now
    if last_at - now < WRONG_CLOCK:
        assert again.next_at == next_tick(schedule, max(last_at, now))
    else:  # made by a clock that was wrong: it does not stop the schedule for years
        assert again.next_at == next_tick(schedule, now)
    assert restarted(schedule.evolve(last_at=None), now).next_at == next_tick(schedule, now)


def test_a_tick_that_was_made_is_left_out_if_its_time_comes_again():
    schedule = a_schedule(last_at=clock("12:03"), next_at=clock("12:02"))  # as only a hand in the table leaves it
    assert firing(schedule, clock("12:02")) == Firing(None, clock("12:03"))
    assert caught_up(schedule, clock("12:04:10")) == [clock("12:04")]


# ---------------------------------------------------------------------------------------------- huge gaps


def cost(act):
    """Seconds of the processor, for the machine may be busy."""
    began = time.process_time()
    act()
    return time.process_time() - began


@pytest.mark.parametrize("misfire", Misfire)
@pytest.mark.parametrize(
    "when",
    [{"cron": "* * * * *"}, {"cron": "*/5 * * * *", "timezone": "America/New_York"}, {"every": 1.0}, {"every": 60.0}],
    ids=["minutely", "in a zone", "every second", "every minute"],
)
def test_a_schedule_that_nobody_looked_at_for_ten_years_is_decided_at_once(misfire, when):
    most = {"misfire_limit": MOST_MISFIRES, "misfire_age": OLDEST_MISFIRE}
    schedule = a_schedule(misfire=misfire, created_at=NOON - 3660 * DAY, next_at=NOON - 3650 * DAY, **when, **most)
    assert cost(lambda: firing(schedule, NOON)) < QUICK


@pytest.mark.parametrize(
    "when",
    [{"cron": "* * * * *"}, {"cron": "*/5 * * * *"}, {"cron": "*/5 8-18 * * *"}, {"every": 1.0}, {"every": 300.0}],
    ids=lambda when: str(next(iter(when.values()))),
)
@pytest.mark.parametrize("limit", [1000, 2000, MOST_MISFIRES])
def test_making_up_for_a_thousand_runs_costs_no_more_than_they_are(when, limit):
    schedule = a_schedule(misfire=ALL, misfire_limit=limit, misfire_age=7 * DAY.total_seconds(), **when)
    made = []
    spent = cost(lambda: made.extend(caught_up(schedule.evolve(next_at=NOON - 30 * DAY), NOON, most=1000)))
    assert len(made) == 1000 or len(made) == len(ticks(schedule, NOON - 7 * DAY, NOON))
    assert spent < 3 * QUICK


# ----------------------------------------------------------------------------------------- when it runs


def test_an_interval_counts_from_when_the_schedule_was_made():
    schedule = a_schedule(every=900.0, created_at=clock("10:07"))
    assert next_tick(schedule, clock("10:00")) == clock("10:22")
    assert next_tick(schedule, clock("10:22")) == clock("10:37")
    assert next_tick(schedule, clock("23:59")) == clock("00:07") + DAY


def test_a_preview_tells_of_changes_of_the_clock_and_an_interval_of_none():
    berlin = a_schedule(cron="30 2 * * *", timezone="Europe/Berlin")
    spring = preview(berlin, datetime(2026, 3, 28, 12, tzinfo=UTC), 2)
    assert [(tick.local.isoformat(), tick.note) for tick in spring] == [
        ("2026-03-29T03:00:00+02:00", MOVED), ("2026-03-30T02:30:00+02:00", ""),
    ]  # fmt: skip
    [autumn] = preview(berlin, datetime(2026, 10, 24, 12, tzinfo=UTC), 1)
    assert (autumn.at.isoformat(), autumn.note) == ("2026-10-25T00:30:00+00:00", ONCE)
    hourly = a_schedule(every=3600.0, created_at=datetime(2026, 3, 29, tzinfo=UTC), timezone="Europe/Berlin")
    local = [tick.local.isoformat() for tick in preview(hourly, hourly.created_at, 2)]
    assert local == ["2026-03-29T03:00:00+02:00", "2026-03-29T04:00:00+02:00"]


@pytest.mark.parametrize("when", [{"every": 90.0}, {"cron": "*/7 * * * *"}])
def test_a_preview_shows_the_very_ticks_that_fire(when):
    schedule = a_schedule(**when)
    assert [tick.at for tick in preview(schedule, NOON, 20)] == ticks(schedule, NOON + timedelta(microseconds=1),
                                                                       preview(schedule, NOON, 20)[-1].at)  # fmt: skip


# --------------------------------------------------------------------------------------- the job of a tick


def test_the_job_of_a_tick_is_what_the_schedule_says():
    schedule = a_schedule(
        tenant="acme", payload={"who": "Ada"}, queue="mail", lane="fast", priority=7, task_version=3, max_attempts=2,
        retry_base=1.0, retry_cap=None, retry_jitter=0.0, timeout=30.0,
    )  # fmt: skip
    job = job_of(schedule, NOON, NOON + MINUTE)
    assert (job.task, job.tenant, job.queue, job.lane) == ("greet", "acme", "mail", "fast")
    assert (job.priority, job.task_version, job.timeout) == (7, 3, 30.0)
    assert job.retry == Retry(2, 1.0, None, 0.0)
    assert (job.payload, job.schedule, job.state) == ({"who": "Ada"}, "nightly", State.PENDING)
    assert (job.due_at, job.created_at) == (NOON, NOON + MINUTE)
    assert (job.key, job.key_scope) == (None, None)
    assert checked(job) == job


def test_the_id_of_a_tick_is_the_same_for_ever_and_nobody_elses():
    schedule, later = a_schedule(), NOON + DAY
    one = job_of(schedule, NOON, later)
    assert one.id == job_of(schedule.evolve(payload={"new": 1}, queue="q", task="t", next_at=later), NOON, NOON).id
    assert one.id == job_of(schedule, NOON.astimezone(UTC), later).id
    others = [
        job_of(schedule, NOON + timedelta(microseconds=1), later),
        job_of(schedule.evolve(name="daily"), NOON, later),
        job_of(schedule.evolve(tenant="acme"), NOON, later),
    ]
    assert len({one.id, *(other.id for other in others)}) == 4
    assert one.id < job_of(schedule, NOON + MINUTE, later).id  # as all ids it sorts by time


@settings(deadline=None)
@given(st.floats(0.001, 86_400), st.integers(0, 10_000))
def test_jitter_delays_each_tick_by_its_own_constant_within_its_bounds(jitter, minutes):
    schedule, tick = a_schedule(jitter=jitter), NOON + minutes * MINUTE
    due_at = job_of(schedule, tick, tick).due_at
    assert tick <= due_at <= tick + timedelta(seconds=jitter)
    assert due_at == job_of(schedule, tick, tick + DAY).due_at


def test_jitter_spreads_the_ticks_and_the_schedules():
    schedule = a_schedule(jitter=3600.0)
    day = ticks(schedule, NOON, NOON + DAY)
    delays = [(job_of(schedule, tick, tick).due_at - tick).total_seconds() for tick in day]
    assert min(delays) < 120
    assert max(delays) > 3480
    assert 1600 < sum(delays) / len(delays) < 2000
    assert delays[0] != (job_of(schedule.evolve(name="other"), NOON, NOON).due_at - NOON).total_seconds()


@pytest.mark.parametrize(
    ("overlap", "scope"), [(Overlap.ALLOW, None), (Overlap.SKIP, Scope.ACTIVE), (Overlap.QUEUE_ONE, Scope.PENDING)]
)
def test_overlap_is_a_key_on_the_schedule(overlap, scope):
    job = job_of(a_schedule(overlap=overlap), NOON, NOON)
    assert job.key_scope is scope
    assert (job.key is None) is (scope is None)
    assert checked(job).key == job_of(a_schedule(overlap=overlap), NOON + MINUTE, NOON).key


def test_a_run_between_the_ticks_is_due_now_and_has_an_id_of_its_own():
    id_ = "0193e0a0-0000-7000-8000-000000000000"
    job = job_of(a_schedule(jitter=3600.0), NOON, NOON, id_=id_)
    assert (job.id, job.due_at, job.schedule) == (id_, NOON, "nightly")


# --------------------------------------------------------------------------------------------- rows


def a_parent(**fields):
    return job_of(a_schedule(for_each="users", **fields), NOON, NOON + MINUTE)


def row_job(parent, row, now, on_end=None):
    return job_of_row(parent, json.dumps(payload_of_row(parent, row)), on_end, now)


def test_with_for_each_the_job_of_a_tick_is_the_one_that_makes_the_others():
    schedule = a_schedule(for_each="users", payload={"force": True}, queue="sync", tenant="acme", task_version=4)
    parent = job_of(schedule, NOON, NOON)
    assert (parent.task, parent.task_version) == (f"{EXPANSION}users", 1)
    assert (parent.tenant, parent.queue, parent.schedule) == ("acme", "sync", "nightly")
    assert parent.id == job_of(a_schedule(tenant="acme"), NOON, NOON).id
    assert checked(parent) == parent


def test_the_job_of_a_row_is_what_the_schedule_says_with_the_row_in_its_payload():
    parent = a_parent(
        payload={"force": True, "user": 0}, tenant="acme", queue="sync", lane="l", priority=3, task_version=4,
        max_attempts=2, retry_base=1.0, retry_cap=None, retry_jitter=0.0, timeout=30.0, overlap=Overlap.SKIP,
    )  # fmt: skip
    job = row_job(parent, {"user": 7}, clock("12:05"))
    assert (job.task, job.task_version, job.tenant, job.queue, job.lane) == ("greet", 4, "acme", "sync", "l")
    assert (job.priority, job.retry, job.timeout) == (3, Retry(2, 1.0, None, 0.0), 30.0)
    assert job.payload == {"force": True, "user": 7}
    assert (job.schedule, job.key, job.due_at) == ("nightly", None, clock("12:05"))


def test_the_id_of_a_row_comes_from_schedule_tick_and_row():
    parent = a_parent()
    one = row_job(parent, {"user": 1}, NOON)
    assert one.id == row_job(parent, {"user": 1}, NOON + DAY).id  # of a run after a crash
    others = [
        row_job(parent, {"user": 2}, NOON),
        row_job(job_of(a_schedule(for_each="users"), NOON + MINUTE, NOON), {"user": 1}, NOON),
        row_job(a_parent(name="daily"), {"user": 1}, NOON),
        row_job(a_parent(tenant="acme"), {"user": 1}, NOON),
    ]
    assert len({one.id, parent.id, *(other.id for other in others)}) == 6


@pytest.mark.parametrize("row", [7, "ada", [1, 2], None, {"user": "Ada"}])
def test_a_row_may_be_the_whole_payload(row):
    assert row_job(a_parent(), row, NOON).payload == row


@pytest.mark.parametrize("row", [7, "ada", [1, 2], None])
def test_a_row_that_cannot_be_joined_to_the_schedules_payload_is_refused(row):
    with pytest.raises(InvalidJob, match="row"):
        payload_of_row(a_parent(payload={"force": True}), row)


def test_what_follows_the_job_of_a_row_is_told_with_it_and_nothing_follows_its_parent():
    wanted = OnEnd(failed=FollowUp("LOST"))
    parent = a_parent(on_end=wanted)
    assert parent.on_end is None
    assert row_job(parent, {}, NOON, wanted).on_end == wanted
    assert job_of(a_schedule(on_end=wanted), NOON, NOON).on_end == wanted


def test_rows_belong_to_the_tenant_of_their_parent():
    """Which its store says, not its payload: that is whatever the one who enqueued it wrote."""
    parent = a_parent(tenant="acme")
    assert "tenant" not in parent.payload["schedule"]
    assert row_job(parent.evolve(tenant="globex"), {}, NOON).tenant == "globex"


# -------------------------------------------------------------------------------------- what is refused


def test_a_schedule_that_can_be_kept_is_answered_as_it_is():
    for schedule in (a_schedule(), a_schedule(every=1.0), a_schedule(for_each="users", misfire=ALL, jitter=0.5)):
        assert check(schedule) is schedule


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", ""), ("name", "   "), ("name", "x" * 201), ("name", "a\nb"), ("name", None), ("name", 7),
        ("task", ""), ("task", "x" * 201), ("tenant", ""), ("tenant", "\0"), ("queue", ""), ("queue", 5),
        ("lane", "\t"), ("lane", "x" * 201), ("lane", 7), ("for_each", ""), ("for_each", "x" * 201),
        ("timezone", "Mars/Olympus"), ("timezone", ""), ("timezone", None),
        ("cron", "61 * * * *"), ("cron", "* * * * * *"), ("cron", "0 0 31 2 *"), ("cron", ""), ("cron", 5),
        ("priority", 2**31), ("priority", 1.5), ("priority", "1"), ("max_attempts", 0), ("max_attempts", 10_001),
        ("max_attempts", "3"), ("retry_base", -1.0), ("retry_base", math.inf), ("retry_cap", -1.0),
        ("retry_jitter", math.nan), ("timeout", 0.0), ("timeout", -1.0), ("timeout", math.inf),
        ("jitter", -0.1), ("jitter", math.inf), ("jitter", math.nan), ("misfire_age", -1.0),
        ("misfire_age", OLDEST_MISFIRE + 1), ("misfire_age", math.nan), ("misfire_limit", 0),
        ("misfire_limit", MOST_MISFIRES + 1),
        ("misfire_limit", -5), ("misfire_limit", 2.5), ("misfire_limit", "5"), ("misfire", "sometimes"),
        ("overlap", "never"), ("payload", {"x": math.nan}), ("payload", {"x": "\0"}), ("payload", b"x"),
        ("payload", {"x": "y" * 2**20}), ("payload", object()),
    ],
)  # fmt: skip
def test_a_value_that_no_schedule_can_have_is_refused_and_its_field_named(field, value):
    with pytest.raises(TreadleError, match=field.removeprefix("retry_")):
        check(a_schedule(**{field: value}))


@pytest.mark.parametrize("every", [0.0, 0.5, -1.0, math.inf, math.nan, 101 * 365 * 86_400.0, "often"])
def test_an_interval_that_cannot_be_is_refused(every):
    with pytest.raises(ConfigError, match="every"):
        check(a_schedule(every=every))


@pytest.mark.parametrize("when", [{"cron": None}, {"cron": "@daily", "every": 60.0}])
def test_a_schedule_has_either_an_expression_or_an_interval(when):
    with pytest.raises(ConfigError, match=r"either cron=.* or every="):
        check(a_schedule(**when))


# ------------------------------------------------------------------------------------- what code declares


def declared(**said):
    return declaration("n", "greet", {"payload": said.pop("payload", {})}, {"cron": "@daily", **said}, "default")


@pytest.mark.parametrize(
    "said",
    [
        {"cron": "@hourly"}, {"tz": "Europe/Berlin"}, {"payload": {"x": 1}}, {"queue": "mail"}, {"lane": "l"},
        {"priority": 1}, {"retry": Retry(max_attempts=2)}, {"max_attempts": 2}, {"timeout": "5m"}, {"misfire": "all"},
        {"misfire_limit": 7}, {"misfire_age": "2d"}, {"overlap": "skip"}, {"jitter": "1m"}, {"for_each": "users"},
        {"cron": None, "every": "1d"},
    ],
    ids=lambda said: next(iter(said)),
)  # fmt: skip
def test_what_code_declares_has_a_mark_that_changes_with_every_word_of_it(said):
    assert declared().declared == declared().declared
    assert declared(**said).declared != declared().declared


def test_whether_a_schedule_is_enabled_is_no_word_of_the_code():
    assert declared(enabled=False).declared == declared().declared
