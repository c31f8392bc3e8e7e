"""The companion's queue (003) on its own store, clause by clause: its profile, a real worker, the table beside them."""

import logging
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pydantic import BaseModel

from tests.support.making import (
    a_job,
    an_error,
    claim,
    current,
    enqueued,
    race,
    recover,
    running,
    settle,
    several,
    taken_over,
)
from tests.support.workbench import ended, idle_waits, in_state, until, working
from treadle import Context, InvalidJob, InvalidPayload, Job, Reason, Retry, State, Treadle, Unique
from treadle.engines.dynamodb.items import ItemKey
from treadle.engines.values import Lease, Renewal, Ruling
from treadle.model import Scope
from treadle.model.lifecycle import Failed, Succeeded
from treadle.profiles import companion
from treadle.testing import FakeClock, run_until_idle

ROOT = Path(__file__).resolve().parents[3]
AS_SET = {"lease": None, "poll": None, "concurrency": None}  # by the profile, not by the workbench


class Summary(BaseModel):
    """The payload of daily_summary."""

    user_id: str
    day: str


@pytest.fixture
def companion_app(make_app):
    """The companion's app by the machine's clock."""
    return make_app(clock=None, profile=companion.PROFILE)


def scheduled(app: Treadle, user: str = "ada", day: str = "2026-01-01") -> Job:
    """As the companion schedules a summary: one for each user and day."""
    key = f"scheduled-job#summary#{user}#{day}"
    return app.tasks["daily_summary"].using(key=key).enqueue(Summary(user_id=user, day=day))


# ------------------------------------------------------------------------------------- the item, and its print


@pytest.mark.covers("003-S01.b", "003-S02.a")
def test_the_companion_prints_every_attribute_under_the_seeds_name(make_app, table, clock):
    app = make_app(profile=companion.PROFILE)
    app.register("daily_summary", lambda user_id: None)
    job = app.enqueue("daily_summary", {"user_id": "ada"})
    claim(app.engine, 1, worker="w1", lease=300.0)
    assert app.view(app.get(job.id)) == {
        "job_id": job.id, "job_type": "daily_summary", "payload": {"user_id": "ada"},
        "scheduled_for": clock.now().isoformat(), "status": "in_progress", "locked_by": "w1",
        "lock_expires_at": (clock.now() + timedelta(minutes=5)).isoformat(), "attempts": 0, "last_error": None,
        "created_at": clock.now().isoformat(), "completed_at": None,
    }  # fmt: skip
    [item] = table.items("job")
    assert item["SK"]["S"].rpartition("#")[2] == job.id


@pytest.mark.covers("003-S02.b")
def test_every_line_that_a_worker_logs_about_a_job_carries_its_id(companion_app, caplog):
    caplog.set_level(logging.DEBUG, "treadle")

    @companion_app.task
    def daily_summary(ctx: Context, fails: bool) -> None:
        ctx.log.info("in the handler")
        if fails:
            raise RuntimeError("no luck")

    good, bad = daily_summary.enqueue(False), daily_summary.enqueue(True)
    with working(companion_app):
        ended(companion_app, good)
        in_state(companion_app, bad, failures=1)
    lines = [record.getMessage() for record in caplog.records]
    assert any(good.id in line and "succeeded" in line for line in lines)
    assert any(bad.id in line and "no luck" in line for line in lines)
    assert all(good.id in line or bad.id in line for line in lines if line.startswith("job "))
    assert {record.job_id for record in caplog.records if record.getMessage() == "in the handler"} == {good.id, bad.id}


# ------------------------------------------------------------------------------------------------ the due query


@pytest.mark.covers("003-S04.a", "003-S08.b")
def test_a_poll_takes_what_is_due_up_to_now_and_nothing_else(make_app, clock):
    app = make_app(profile=companion.PROFILE)
    work = app.register("work", lambda: None)
    past, exactly = work.using(run_after=1).enqueue(), work.using(run_after=2).enqueue()
    work.using(run_after=2.000001).enqueue()
    cancelled = app.cancel(work.enqueue().id)
    clock.advance(seconds=2)
    assert [job.id for job in claim(app.engine)] == [past.id, exactly.id]
    assert app.get(cancelled.id).state is State.CANCELLED


@pytest.mark.covers("003-S04.b")
@pytest.mark.parametrize("fate", ["finished", "cancelled"])
def test_more_finished_jobs_than_a_poll_looks_at_do_not_hide_a_due_one(make_app, table, clock, fate):
    """The seed's Limit of 25 counts before its filter: there, twenty-five finished jobs end the queue."""
    app = make_app(profile=companion.PROFILE)
    work = app.register("work", lambda: None)
    jobs = [work.enqueue() for _ in range(60)]
    if fate == "finished":
        run_until_idle(app)
    else:
        for job in jobs:
            app.cancel(job.id)
    assert table.due() == []
    due = work.enqueue()
    assert [job.id for job in claim(app.engine, 25)] == [due.id]


@pytest.mark.covers("003-S04.b")
def test_more_running_jobs_than_a_poll_looks_at_do_not_hide_a_due_one(make_app, clock):
    app = make_app(profile=companion.PROFILE)
    work = app.register("work", lambda: None)
    for _ in range(60):
        work.enqueue()
    assert len(claim(app.engine, 60)) == 60
    due = work.enqueue()
    assert [job.id for job in claim(app.engine, 25)] == [due.id]


# -------------------------------------------------------------------------------------------- the dedupe record


@pytest.fixture
def planner(make_app, clock):
    app = make_app(profile=companion.PROFILE)
    app.register("daily_summary", lambda payload: None)
    return app


@pytest.mark.covers("003-S06.a")
@pytest.mark.parametrize("fate", ["pending", "running", "completed", "dead_letter", "cancelled"])
def test_while_the_record_stands_no_second_job_is_made_whatever_became_of_the_first(planner, clock, fate):
    task = planner.tasks["daily_summary"].using(key="ada", retry=Retry(max_attempts=1))
    first = task.enqueue({})
    if fate == "cancelled":
        planner.cancel(first.id)
    elif fate != "pending":
        [held] = claim(planner.engine)
        outcome = {"completed": Succeeded("1"), "dead_letter": Failed(an_error(clock.now()))}.get(fate)
        if outcome:
            settle(planner.engine, held, outcome)
    again = task.enqueue({})
    assert again == planner.get(first.id)
    assert sum(planner.count().values()) == 1
    clock.advance(days=1)  # the window is over
    assert task.enqueue({}).id != first.id


@pytest.mark.covers("003-S06.b")
def test_of_schedulers_that_race_one_makes_the_job_and_all_get_it(make_engine, table, clock):
    engines = several(make_engine, 6)
    key = {"key": "ada", "key_scope": Scope.WINDOW, "key_until": clock.now() + timedelta(days=1)}
    for _ in range(5):
        asked = [a_job(clock.now(), **key) for _ in engines]
        told = race(6, lambda place, asked=asked: engines[place].enqueue([asked[place]])[0])
        assert sum(receipt.created for receipt in told) == 1
        assert len({receipt.job.id for receipt in told}) == 1
        [record] = table.items("key#")
        assert record["job"] == {"S": told[0].job.id}
        assert len(table.items("job")) == 1
        for place in table.places("key#") + table.places("job") + table.places("id#"):
            table.remove(place)


@pytest.mark.covers("003-S06.c")
def test_a_record_whose_job_is_gone_is_not_trusted(planner, table, clock):
    task = planner.tasks["daily_summary"].using(key="ada")
    lost = task.enqueue({})
    for place in table.places("job") + table.places("id#"):
        table.remove(place)
    made = task.enqueue({})
    assert made.id != lost.id
    [record] = table.items("key#")
    assert record["job"] == {"S": made.id}
    assert task.enqueue({}).id == made.id  # and it stands again
    assert [job.id for job in claim(planner.engine)] == [made.id]


# ------------------------------------------------------------------------------------------------- the life cycle


@pytest.mark.covers("003-S07.a", "003-S07.b")
def test_the_six_statuses_are_printed_and_found_on_this_store_too(make_app, clock):
    app = make_app(profile=companion.PROFILE)

    @app.task
    def work(fails: bool) -> None:
        if fails:
            raise RuntimeError("for now")

    jobs = {"completed": work.enqueue(False), "failed": work.enqueue(True)}
    jobs["dead_letter"] = work.using(retry=Retry(max_attempts=1)).enqueue(True)
    run_until_idle(app)
    jobs["cancelled"] = app.cancel(work.enqueue(False).id)
    jobs["in_progress"] = work.enqueue(False)
    claim(app.engine, 1)
    jobs["pending"] = work.enqueue(False)
    for word, job in jobs.items():
        assert app.view(app.get(job.id))["status"] == word
        assert [found.id for found in app.find(state=word).jobs] == [job.id]


@pytest.mark.covers("003-S07.c", "003-S08.b")
def test_a_cancelled_job_never_runs(companion_app):
    runs: list[str] = []

    @companion_app.task
    def work(name: str) -> None:
        runs.append(name)

    cancelled = companion_app.cancel(work.using(run_after=0.2).enqueue("cancelled").id)
    good = work.using(run_after=0.2).enqueue("good")
    with working(companion_app):
        ended(companion_app, good)
    assert (runs, companion_app.get(cancelled.id).state) == (["good"], State.CANCELLED)


@pytest.mark.covers("003-S08.a", "003-S12.b")
def test_one_that_waits_for_its_retry_and_one_whose_worker_crashed_both_run_again(make_app):
    """In the seed's own words both would wait for ever: neither is pending there."""
    app = make_app(clock=None, profile=companion.PROFILE, sweep=0.1)
    runs: list[str] = []

    @app.task(retry=Retry(max_attempts=3, base=0.2, jitter=0))
    def work(ctx: Context, name: str) -> None:
        runs.append(name)
        if name == "retry" and ctx.attempt == 1:
            raise RuntimeError("once")

    crashed = work.enqueue("crash")
    claim(app.engine, 1, lease=0.3)  # by a worker that is never heard of again
    failed = work.enqueue("retry")
    with working(app, poll=0.05):
        done = ended(app, crashed, failed)
    assert sorted(runs) == ["crash", "retry", "retry"]
    assert [(job.state, job.crashes, job.failures) for job in done] == [
        (State.SUCCEEDED, 1, 0), (State.SUCCEEDED, 0, 1),
    ]  # fmt: skip


@pytest.mark.covers("003-S09.a")
def test_a_claim_is_a_conditional_write_that_one_of_several_racers_wins(make_engine, clock):
    engines = several(make_engine, 6)
    for _ in range(10):
        job = enqueued(engines[0])
        taken = race(6, lambda place: claim(engines[place], 1, worker=f"w{place}"))
        [won] = [jobs[0] for jobs in taken if jobs]
        assert (current(engines[0], job), won.state) == (won, State.RUNNING)
        settle(engines[0], won, Succeeded("1"))


@pytest.mark.covers("003-S09.b", "003-S10.a", "003-S15.a")
def test_a_class_of_the_seed_is_called_with_its_model_by_a_real_worker_and_its_job_is_completed(companion_app, table):
    seen: list[object] = []

    class DailySummaryHandler:
        @classmethod
        def payload_model(cls) -> type[BaseModel]:
            return Summary

        def handle(self, payload: Summary) -> None:
            [item] = table.items("job")
            seen.append((payload, item["status"]["S"], "locked_by" in item, "lock_expires_at" in item))

    companion_app.register("daily_summary", DailySummaryHandler)
    before = datetime.now(UTC)
    job = scheduled(companion_app)
    with working(companion_app):
        [done] = ended(companion_app, job)
    assert seen == [(Summary(user_id="ada", day="2026-01-01"), "running", True, True)]
    printed = companion_app.view(done)
    assert (printed["status"], done.result) == ("completed", None)
    assert before <= done.finished_at <= datetime.now(UTC)
    assert printed["completed_at"] == done.finished_at.isoformat()


@pytest.mark.covers("003-S11.a", "003-S11.b", "003-S14.a", "003-S14.b")
def test_failures_wait_a_minute_doubled_and_the_fifth_ends_as_dead_letter(make_app, table, clock):
    app = make_app(profile=companion.PROFILE)

    @app.task
    def work() -> None:
        raise RuntimeError("no luck")

    job, waits = work.enqueue(), []
    for attempts in range(1, 5):
        [after] = run_until_idle(app)
        printed = app.view(after)
        assert (printed["status"], printed["attempts"]) == ("failed", attempts)
        [item] = table.items("job")
        assert item["scheduled_for"]["S"] == item["SK"]["S"].split("#")[1]  # it moved with its key
        waits.append((after.due_at - clock.now()).total_seconds())
        assert run_until_idle(app) == []
        clock.advance(seconds=waits[-1])
    assert waits == [60, 120, 240, 480]
    [dead] = run_until_idle(app)
    assert (dead.id, app.view(dead)["status"], app.view(dead)["attempts"]) == (job.id, "dead_letter", 5)
    clock.advance(days=365)
    assert (run_until_idle(app), table.items("job")) == ([], [])


# --------------------------------------------------------------------------------------------- locks and clocks


@pytest.mark.covers("003-S12.a")
def test_a_job_that_runs_longer_than_its_lease_keeps_it_and_nobody_else_gets_it(make_app):
    app, other = make_app(clock=None), make_app(clock=None)
    runs: list[int] = []
    gate = threading.Event()

    def work(ctx: Context) -> None:
        runs.append(ctx.attempt)
        assert gate.wait(60)

    for each in (app, other):
        each.register("work", work)
    job = app.enqueue("work")
    with working(app, lease=2.0), working(other, lease=2.0):
        first = in_state(app, job, state=State.RUNNING).lease_until
        until(lambda: app.get(job.id).lease_until > first + timedelta(seconds=2.5), "renewals past the first lease")
        gate.set()
        [done] = ended(app, job)
    assert (runs, done.crashes, done.state) == ([1], 0, State.SUCCEEDED)


@pytest.mark.covers("003-S13.a")
@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Kathmandu"])
def test_every_stored_time_is_utc_whatever_the_machines_zone(make_app, table, monkeypatch, zone):
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        app = make_app(clock=None, profile=companion.PROFILE)
        work = app.register("work", lambda: None)
        with pytest.raises(InvalidJob, match="no time zone"):
            work.using(run_after=datetime(2026, 1, 1, 12)).enqueue()  # noqa: DTZ001 - that is the mistake
        before = datetime.now(UTC)
        work.enqueue()
        [job] = claim(app.engine, 1)
        [item] = table.items("job")
        times = [item[name]["S"] for name in ("scheduled_for", "created_at", "lock_expires_at", "claimed_at")]
        assert all(text.endswith("Z") for text in times)
        assert before <= datetime.fromisoformat(item["created_at"]["S"]) <= datetime.now(UTC)
        assert job.created_at.utcoffset() == timedelta(0)
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.covers("003-S13.b", "003-S22.b")
@pytest.mark.parametrize("wrong_by", [timedelta(minutes=10), timedelta(minutes=-10)])
def test_a_wrong_clock_cannot_let_two_holders_settle_one_job(open_engine, store_url, clock, wrong_by):
    """The fast one takes the lease away too early: then the holder's writes are refused, whatever its clock says."""
    fast = FakeClock(clock.now() + wrong_by)
    right, wrong = (open_engine(store_url, clock=one.now) for one in (clock, fast))
    job = running(right)
    early = wrong.expired(limit=10)
    assert bool(early) is (wrong_by > timedelta(0))
    for seen in early:
        assert recover(wrong, seen).ruling is Ruling.APPLIED
    fast.advance(hours=1)
    taken = claim(wrong, 1, worker="w2")
    verdicts = [settle(right, job, Succeeded('"right"')), *(settle(wrong, one, Succeeded('"wrong"')) for one in taken)]
    assert [verdict.ruling for verdict in verdicts].count(Ruling.APPLIED) == 1
    assert verdicts[-1].ruling is Ruling.APPLIED
    assert current(right, job).result == ("wrong" if early else "right")


@pytest.mark.covers("003-S22.b")
def test_who_lost_its_lease_can_neither_settle_nor_extend_nor_report(engine, table, clock):
    zombie, holder = taken_over(engine, clock)
    before = table.items()
    assert settle(engine, zombie, Succeeded("1")).ruling is Ruling.LOST
    assert settle(engine, zombie, Failed(an_error(clock.now()))).ruling is Ruling.LOST
    hold = Lease(zombie.id, zombie.lease_token, clock.now(), None, 100)
    assert [held.renewal for held in engine.extend([hold], lease=30.0)] == [Renewal.LOST]
    assert table.items() == before
    assert settle(engine, holder, Succeeded("2")).ruling is Ruling.APPLIED


@pytest.mark.covers("003-S22.a")
def test_the_documentation_promises_handlers_at_least_once_and_nothing_stronger():
    readme, promises = (ROOT / "README.md").read_text(), (ROOT / "docs/promises.md").read_text()
    assert "A state changes exactly once; a handler runs at least once." in readme
    assert "State changes exactly once; handlers run at least once." in promises
    assert "does not promise: exactly-once handlers" in readme
    quoting = set((ROOT / "docs").glob("requirements-*.md"))
    pages = {ROOT / "README.md", *(ROOT / "docs").glob("*.md")} - quoting
    for page in sorted(pages):
        for line in page.read_text().splitlines():
            if "exactly once" in line.lower() or "exactly-once" in line.lower():
                said = ("state", "not promise", "nominal time", "job is made")  # a tick makes its job once
                assert any(words in line.lower() for words in said), f"{page.name}: {line}"


# ------------------------------------------------------------------------------------------------------- payloads


@pytest.mark.covers("003-S16.a", "003-S16.b")
def test_a_payload_is_checked_at_enqueue_and_again_when_it_runs(companion_app):
    def daily_summary(payload: Summary) -> None:
        raise AssertionError("not with this payload")

    task = companion_app.register("daily_summary", daily_summary)
    with pytest.raises(InvalidPayload, match="day"):
        companion_app.enqueue("daily_summary", {"user_id": "ada"})
    with pytest.raises(InvalidPayload):
        task.enqueue({"user_id": "ada", "day": 7})
    assert sum(companion_app.count().values()) == 0
    stored = companion_app.engine.enqueue([a_job(datetime.now(UTC), task="daily_summary", payload_json='{"day":1}')])[
        0
    ].job
    with working(companion_app):
        [job] = ended(companion_app, stored)
    assert (job.state, job.reason, job.failures) == (State.FAILED, Reason.INVALID_PAYLOAD, 0)
    assert companion_app.view(job)["status"] == "dead_letter"


# -------------------------------------------------------------------------------------------------------- workers


@pytest.mark.covers("003-S18.a")
@pytest.mark.parametrize(
    ("settings", "poll", "most"), [({}, 30, 25), ({"poll": 7, "batch": 4}, 7, 4)], ids=["as it is", "configured"]
)
def test_a_worker_of_the_companion_polls_every_thirty_seconds_for_at_most_twenty_five(
    make_app, monkeypatch, settings, poll, most
):
    app = make_app(clock=None, profile=companion.PROFILE, schedules=False, heartbeat="1h", **settings)
    app.register("work", lambda: None)
    limits, turn = [], app.engine.turn

    def watched_turn(changes, claim=None, **how):
        if claim is not None:
            limits.append(claim.limit)
        return turn(changes, claim, **how)

    monkeypatch.setattr(app.engine, "turn", watched_turn)
    waits, _ = idle_waits(app, monkeypatch, **{**AS_SET, "concurrency": 100})
    assert poll - 2 < waits[0] <= poll
    assert set(limits) == {most}
    assert len(limits) <= 2  # once for its own jobs, and once for those that nobody knows


@pytest.mark.covers("003-S18.a", "003-S18.b")
def test_the_companion_runs_its_jobs_in_ascending_due_time_and_holds_none_unstarted(make_app, clock):
    """One after the other, as its profile says; while one runs, the rest is free for others."""
    app = make_app(clock=None, profile=companion.PROFILE)
    order: list[int] = []
    held: list[int] = []

    @app.task
    def work(number: int) -> None:
        order.append(number)
        held.append(len(app.find(state=State.RUNNING).jobs))

    now = datetime.now(UTC)
    due = {number: now + timedelta(milliseconds=300 + number) for number in (3, 1, 4, 0, 2)}
    jobs = [work.using(run_after=moment).enqueue(number) for number, moment in due.items()]
    until(lambda: datetime.now(UTC) > now + timedelta(milliseconds=310), "their time")
    with working(app, **AS_SET):
        ended(app, *jobs)
    assert order == [0, 1, 2, 3, 4]
    assert max(held) <= 2  # the one that runs, and at most the next


# ------------------------------------------------------------------------------------------------------ retention


@pytest.mark.covers("003-S20.a")
def test_dead_letters_are_kept_for_ever_and_the_others_are_pruned(make_app, clock):
    app = make_app(profile=companion.PROFILE)

    @app.task
    def work(fails: bool) -> None:
        if fails:
            raise RuntimeError("no luck")

    dead = work.using(retry=Retry(max_attempts=1)).enqueue(True)
    completed = work.enqueue(False)
    run_until_idle(app)
    cancelled = app.cancel(work.enqueue(False).id)
    clock.advance(days=6)
    assert app.prune() == 0
    clock.advance(days=20 * 365)
    assert app.prune() == 2
    found = app.engine.get([dead.id, completed.id, cancelled.id])
    assert [job is None for job in found] == [False, True, True]
    printed = app.view(app.get(dead.id))
    assert (printed["status"], "no luck" in printed["last_error"]) == ("dead_letter", True)
    assert [event.kind for event in app.events(dead.id)] == ["failed"]


@pytest.mark.covers("003-S06.a")
def test_a_summary_that_was_asked_for_twice_is_sent_once(companion_app):
    sent: list[str] = []

    def daily_summary(payload: Summary) -> None:
        sent.append(payload.user_id)

    companion_app.register("daily_summary", daily_summary)
    with working(companion_app):
        first = scheduled(companion_app)
        ended(companion_app, first)
        assert scheduled(companion_app).id == first.id  # by another cron of the same day
        ended(companion_app, scheduled(companion_app, user="bob"))
    assert sorted(sent) == ["ada", "bob"]
    assert companion.PROFILE.task["unique"] == Unique("window", window="1d")


def test_the_seeds_own_filter_reads_our_table(make_app, table, clock):
    """A dashboard of the companion that was written before: PK = job, SK <= scheduled#now, status pending."""
    app = make_app(profile=companion.PROFILE)
    work = app.register("work", lambda: None)
    jobs = [work.enqueue() for _ in range(3)]
    claim(app.engine, 1)
    high = f"scheduled#{clock.now().isoformat()}#~".replace("+00:00", ".000000Z")
    pending = [item for item in table.due(high=high) if item["status"]["S"] == "pending"]
    assert [item["SK"]["S"].rpartition("#")[2] for item in pending] == [job.id for job in jobs[1:]]
    assert all(ItemKey(item["PK"]["S"], item["SK"]["S"]) for item in pending)
