"""Why is this job not running? Every kind of obstacle, and the order in which they are told."""

from datetime import UTC, datetime, timedelta

import pytest

from tests.support.making import a_job
from treadle.model import Reason, State
from treadle.model.records import ANY, Gate, Pause, PauseOwner, WorkerInfo
from treadle.model.retry import Retry
from treadle.model.why import why

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def after(**span):
    return NOON + timedelta(**span)


def a_member(**fields):
    """A worker of the default queue that knows `greet` and was heard of just now."""
    given = {
        "name": "w1", "host": "h", "pid": 1, "queues": ["default"], "lanes": None, "tasks": {"greet": 1},
        "concurrency": 2, "running": 0, "stopping": False, "started_at": NOON, "seen_at": NOON, "period": 10.0,
    }  # fmt: skip
    return WorkerInfo(**{**given, **fields})


WORKERS = (a_member(),)


def asked(pauses=(), members=WORKERS, holder=None, now=NOON, outside=False, **fields):
    """What is said of a job with these fields."""
    return why(a_job(NOON, **fields), now, pauses, members, holder, outside=outside)


def kinds(*arguments, **named):
    return [obstacle.kind for obstacle in asked(*arguments, **named)]


def said(*arguments, **named):
    [obstacle] = asked(*arguments, **named)
    return obstacle.text


# ------------------------------------------------------------------------------- a job that need not run


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"state": State.SUCCEEDED}, "it has ended: succeeded at 2026-01-01 12:00:00 UTC"),
        ({"state": State.FAILED, "reason": Reason.EXHAUSTED}, "failed at 2026-01-01 12:00:00 UTC (exhausted)"),
        ({"state": State.CANCELLED, "reason": Reason.EXPIRED}, "cancelled at 2026-01-01 12:00:00 UTC (expired)"),
    ],
)
def test_one_that_has_ended_is_told_when_and_why_and_nothing_else(fields, words):
    [obstacle] = asked([Pause(actor="ada")], [], finished_at=NOON, **fields)
    assert obstacle.kind == "ended"
    assert words in obstacle.text


def test_one_whose_key_was_taken_is_told_who_has_it():
    gone = {"state": State.CANCELLED, "reason": Reason.SUPERSEDED, "finished_at": NOON, "key": "k"}
    holder = a_job(NOON, state=State.RUNNING)
    assert kinds(holder=holder, **gone) == ["superseded"]
    assert f"key 'k' back, and job {holder.id} (running) has it" in said(holder=holder, **gone)
    assert "another job had it by then" in said(**gone)


def test_one_that_runs_is_told_who_has_it_and_until_when():
    held = {"state": State.RUNNING, "worker": "w7", "lease_until": after(seconds=30), "claimed_at": NOON}
    assert kinds([Pause(actor="ada")], [], **held) == ["leased"]
    assert "worker w7 has it (claimed at 2026-01-01 12:00:00 UTC), its lease runs until 2026-01-01 12:00:30" in said(
        **held
    )
    started = {**held, "started_at": after(seconds=1)}
    assert "since 2026-01-01 12:00:01 UTC" in said(**started)
    assert "asked to stop" in said(**started, cancel_requested=True)
    late = said(**started, now=after(seconds=30))
    assert "its lease ran out at 2026-01-01 12:00:30" in late
    assert "will take it up again" in late


# ----------------------------------------------------------------------------------------- the gate


@pytest.mark.parametrize(
    ("scope", "words"),
    [
        ({}, "everything is paused by ada"),
        ({"tenant": "default"}, "tenant default is paused by ada"),
        ({"queue": "default"}, "queue default is paused by ada"),
        ({"task": "greet"}, "task greet is paused by ada"),
        ({"tenant": "default", "task": "greet"}, "tenant default, task greet is paused by ada"),
    ],
)
def test_a_pause_is_told_with_its_scope_who_since_when_until_when_and_why(scope, words):
    pause = Pause(**scope, actor="ada", reason="we move", at=NOON, until=after(hours=1))
    assert kinds([pause]) == ["paused"]
    text = said([pause])
    assert words in text
    assert "since 2026-01-01 12:00:00 UTC, until 2026-01-01 13:00:00 UTC: we move" in text


def test_pauses_of_others_are_no_obstacle_and_several_are_all_told():
    others = [Pause(tenant="globex"), Pause(queue="mail"), Pause(task="send"), Pause("default", ANY, "send")]
    assert kinds(others) == ["next"]
    assert kinds([Pause(), *others, Pause(task="greet")]) == ["paused", "paused"]


def test_a_spent_budget_has_its_own_kind():
    why = "12 of 10 micros were spent on 2026-01-01"
    pause = Pause("default", actor="budget", reason=why, at=NOON, until=after(hours=12), owner=PauseOwner.BUDGET)
    assert kinds([pause]) == ["budget"]
    assert "the budget of tenant default is spent since" in said([pause])
    assert "12 of 10 micros" in said([pause])


def test_a_pause_that_is_over_does_not_stand_in_the_gate():
    pauses = [Pause(until=NOON), Pause(until=after(seconds=1)), Pause(task="x")]
    assert Gate.at(pauses, NOON).pauses == pauses[1:]
    assert not Gate.at(pauses, after(seconds=1)).blocks("default", "default", "greet")
    assert Gate.at(pauses, after(seconds=1)).blocks(task="x")


@pytest.mark.parametrize(
    ("pause", "stopped"),
    [
        (Pause(), {"acme mail send", "acme mail greet", "acme default greet", "globex mail send"}),
        (Pause("acme"), {"acme mail send", "acme mail greet", "acme default greet"}),
        (Pause(queue="mail"), {"acme mail send", "acme mail greet", "globex mail send"}),
        (Pause(task="send"), {"acme mail send", "globex mail send"}),
        (Pause("acme", "mail"), {"acme mail send", "acme mail greet"}),
        (Pause("acme", ANY, "greet"), {"acme mail greet", "acme default greet"}),
        (Pause("acme", "mail", "send"), {"acme mail send"}),
        (Pause("acme", "default", "send"), set()),
    ],
)
def test_a_pause_stops_what_all_its_names_fit(pause, stopped):
    jobs = {"acme mail send", "acme mail greet", "acme default greet", "globex mail send"}
    assert {job for job in jobs if pause.blocks(*job.split())} == stopped


def test_a_gate_is_shut_to_whichever_job_only_by_a_pause_that_names_none():
    assert not Gate([Pause("acme")]).blocks(queue="mail")
    assert Gate([Pause(queue="mail")]).blocks(queue="mail")
    assert not Gate([Pause(queue="mail")]).blocks()
    assert Gate([Pause()]).blocks()


# ----------------------------------------------------------------------------------------- its time


@pytest.mark.parametrize(
    ("span", "words"),
    [
        ({"seconds": 90}, "in 90 s"),
        ({"seconds": 119}, "in 119 s"),
        ({"minutes": 2}, "in 2 min"),
        ({"minutes": 119}, "in 119 min"),
        ({"hours": 2}, "in 2 h"),
        ({"hours": 47}, "in 47 h"),
        ({"days": 2}, "in 2 d"),
    ],
)
def test_one_that_is_due_later_is_told_when(span, words):
    assert kinds(due_at=after(**span)) == ["due"]
    text = said(due_at=after(**span))
    assert text.startswith(f"it is due at {after(**span):%Y-%m-%d %H:%M:%S} UTC, {words}")


def test_one_that_waits_for_its_retry_is_told_how_many_it_has_spent():
    text = said(due_at=after(minutes=1), failures=2, retry=Retry(max_attempts=5))
    assert text.endswith("after failure 2 of 5")


def test_one_that_was_not_started_in_time_will_be_ended():
    assert kinds(expires_at=NOON) == ["expired"]
    assert "over at 2026-01-01 12:00:00 UTC; a worker will end it" in said(expires_at=NOON)
    assert kinds(expires_at=after(seconds=1)) == ["next"]


# ------------------------------------------------------------------------------------------- workers


def test_without_a_live_worker_nothing_runs():
    assert kinds(members=[]) == ["no_worker"]
    assert said(members=[]).endswith("`treadle worker`")
    assert said(members=[], queue="slow").endswith("`treadle worker --queue slow`")
    assert "start one" in said(members=[])


@pytest.mark.parametrize(("silent", "alive"), [(30.9, True), (31.0, False), (3600, False)])
def test_a_worker_that_missed_three_beats_counts_for_dead(silent, alive):
    assert a_member(period=10.0).alive(after(seconds=silent)) is alive
    assert kinds(now=after(seconds=silent)) == (["next"] if alive else ["no_worker"])


def test_workers_of_other_queues_do_not_help():
    members = [a_member(queues=["mail", "sms"]), a_member(name="w2", queues=["reports"])]
    assert kinds(members=members) == ["no_queue"]
    assert said(members=members) == "no live worker serves queue 'default'; they serve: mail, reports, sms"


def test_nor_do_those_of_other_lanes():
    assert kinds(members=[a_member(lanes=["slow"])], lane="fast") == ["no_queue"]
    assert "lane 'fast'" in said(members=[a_member(lanes=["slow"])], lane="fast")
    assert kinds(members=[a_member(lanes=["fast", "slow"])], lane="fast") == ["next"]
    assert kinds(members=[a_member(lanes=[""])]) == ["next"]


def test_a_worker_that_stops_takes_no_more():
    stopping = a_member(stopping=True)
    assert kinds(members=[stopping]) == ["no_worker"]
    assert "stopping" in said(members=[stopping])
    assert kinds(members=[stopping, a_member(name="w2")]) == ["next"]
    text = said(members=[stopping, a_member(name="w2", queues=["mail"])], queue="sms")
    assert text.endswith("they serve: mail")  # not what the one that goes has served


def test_a_task_that_no_worker_of_the_queue_knows_is_named():
    assert kinds(task="send") == ["unknown_task"]
    assert said(task="send") == "no live worker of queue 'default' knows task 'send'"
    elsewhere = [a_member(), a_member(name="w2", queues=["mail"], tasks={"send": 1})]
    assert kinds(members=elsewhere, task="send") == ["unknown_task"]


def test_a_version_that_no_worker_knows_yet_is_named():
    assert said(task_version=2) == "no live worker of queue 'default' knows version 2 of task 'greet'"
    assert kinds(members=[a_member(tasks={"greet": 3})], task_version=2) == ["next"]


def test_one_that_nothing_keeps_is_next_or_waits_for_a_slot():
    assert said() == "nothing: 1 live worker can take it (0 of 2 slots busy); it should start any moment"
    two = [a_member(running=2), a_member(name="w2", running=1)]
    assert said(members=two) == "nothing: 2 live workers can take it (3 of 4 slots busy); it should start any moment"
    full = [a_member(running=2), a_member(name="w2", queues=["mail"])]
    assert kinds(members=full) == ["busy"]
    assert "all 2 slots were busy" in said(members=full)


def test_obstacles_come_firmest_first_and_a_blocked_job_hears_of_workers_only_if_they_lack():
    pause, later = Pause(actor="ada"), after(hours=1)
    fields = {"expires_at": NOON, "due_at": later}
    assert kinds([pause], **fields) == ["expired", "paused", "due"]
    assert kinds([pause], [], **fields) == ["expired", "paused", "due", "no_worker"]
    assert kinds([pause], [a_member(running=2)]) == ["paused"]


# ----------------------------------------------------------------------------------- asked by a tenant


def test_a_tenant_hears_of_its_own_pauses_and_of_the_houses_only_that_there_is_one():
    own = Pause("default", actor="ada", reason="we move", at=NOON)
    house = Pause(queue="default", actor="root", reason="globex floods us", at=NOON)
    mine, theirs = asked([own, house], outside=True)
    assert (mine.kind, theirs.kind) == ("paused", "paused")
    assert "ada" in mine.text
    assert "root" not in theirs.text
    assert "globex" not in theirs.text


@pytest.mark.parametrize("members", [[], [a_member(queues=["globex"])], [a_member(running=2)], [a_member()]])
def test_a_tenant_hears_nothing_of_workers_and_of_how_busy_they_are(members):
    assert asked(members=members, outside=True) == asked(outside=True)
    assert kinds(members=members, outside=True) == ["next"]
