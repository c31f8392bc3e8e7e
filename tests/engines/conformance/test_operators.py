"""What operators do to jobs: delete them, edit those that wait, many at a time."""

import pytest

from tests.support.making import (
    an_error,
    claim,
    claimed,
    current,
    ended,
    enqueued,
    insisted,
    race,
    running,
    settle,
    several,
    write,
)
from treadle.engines.values import JobFilter, Ruling
from treadle.errors import NotPossible
from treadle.model import EventKind, Scope, State, lifecycle, new_id
from treadle.model.edit import Edit, NewPayload
from treadle.model.lifecycle import Failed, Succeeded
from treadle.model.records import Pause

BIG = '"' + "x" * 900_000 + '"'


def deleted(engine, job, **words):
    return write(engine, lifecycle.delete(job, engine.now(), actor="ada", **words))


def edited(engine, job, **fields):
    return write(engine, lifecycle.edit(job, Edit(**fields), engine.now(), actor="ada"))


def everywhere(engine):
    """The ids that any list or count shows."""
    states = [None, *State]
    return {job.id for state in states for job in engine.find(JobFilter(state), limit=100).jobs}


# ------------------------------------------------------------------------------------------------- deleting


@pytest.mark.parametrize("state", [State.PENDING, State.SUCCEEDED, State.FAILED, State.CANCELLED])
def test_a_deleted_job_is_nowhere_and_its_trail_says_who_and_why(engine, state):
    job = enqueued(engine) if state is State.PENDING else ended(engine, state)
    kept = enqueued(engine, queue="another")

    assert deleted(engine, job, note="a secret was in it").ruling is Ruling.APPLIED

    assert engine.get([job.id]) == [None]
    assert everywhere(engine) == {kept.id}
    assert sum(engine.count(JobFilter()).values()) == 1
    assert claim(engine) == []
    event = engine.events(job.id)[-1]
    assert (event.kind, event.actor, event.note) == (EventKind.DELETED, "ada", "task greet: a secret was in it")
    assert event.revision == job.revision + 1


def test_a_job_that_is_claimed_meanwhile_is_not_deleted(engine):
    job = enqueued(engine)
    held = claimed(engine, job)

    verdict = deleted(engine, job)

    assert (verdict.ruling, verdict.job.state) == (Ruling.LOST, State.RUNNING)
    assert settle(engine, held, Succeeded("1")).ruling is Ruling.APPLIED
    with pytest.raises(NotPossible, match="running; cancel it"):
        lifecycle.delete(held, engine.now(), actor="ada")


def test_a_job_is_deleted_once(engine):
    job = ended(engine, State.FAILED)
    assert deleted(engine, job).ruling is Ruling.APPLIED
    verdict = deleted(engine, job)
    assert (verdict.ruling, verdict.job) == (Ruling.LOST, None)
    assert [event.kind for event in engine.events(job.id)].count(EventKind.DELETED) == 1


@pytest.mark.parametrize("scope", list(Scope))
def test_the_key_of_a_deleted_job_is_free(engine, clock, scope):
    until = {"key_until": engine.now() + lifecycle.timedelta(days=1)} if scope is Scope.WINDOW else {}
    key = {"key": "k", "key_scope": scope, **until}
    job = enqueued(engine, **key)
    assert enqueued(engine, **key).id == job.id

    deleted(engine, job)

    again = enqueued(engine, **key)
    assert again.id != job.id
    deleted(engine, again)
    third = ended(engine, State.SUCCEEDED, **key)
    deleted(engine, third)
    assert enqueued(engine, **key).id not in (job.id, again.id, third.id)


def test_an_ended_job_is_deleted_though_a_newer_one_has_its_key(engine):
    key = {"key": "k", "key_scope": Scope.ACTIVE}
    old = ended(engine, State.SUCCEEDED, **key)
    new = enqueued(engine, **key)
    assert new.id != old.id

    deleted(engine, old)

    assert enqueued(engine, **key).id == new.id


def in_window(engine, **fields):
    """The fields of a request whose key is held for an hour."""
    until = engine.now() + lifecycle.timedelta(hours=1)
    return {"key": "k", "key_scope": Scope.WINDOW, "key_until": until, **fields}


@pytest.mark.parametrize("state", [state for state in State if state is not State.RUNNING])
def test_a_job_whose_window_is_over_is_deleted_and_its_successor_keeps_the_key(engine, clock, state):
    old = enqueued(engine, **in_window(engine)) if state is State.PENDING else ended(engine, state, **in_window(engine))
    clock.advance(hours=1)
    new = enqueued(engine, **in_window(engine))
    assert new.id != old.id

    assert deleted(engine, old).ruling is Ruling.APPLIED

    assert engine.get([old.id]) == [None]
    assert everywhere(engine) == {new.id}
    assert engine.events(old.id)[-1].kind is EventKind.DELETED
    assert enqueued(engine, **in_window(engine)).id == new.id
    deleted(engine, new)
    assert enqueued(engine, **in_window(engine)).id not in (old.id, new.id)


def test_all_who_had_a_key_before_are_deleted_in_one_turn_and_the_last_keeps_it(engine, clock):
    jobs = []
    for _ in range(4):
        jobs.append(ended(engine, State.SUCCEEDED, **in_window(engine)))
        clock.advance(hours=1)
    last = enqueued(engine, **in_window(engine))

    turn = engine.turn([lifecycle.delete(job, engine.now(), actor="ada") for job in jobs])

    assert {verdict.ruling for verdict in turn.verdicts} == {Ruling.APPLIED}
    assert everywhere(engine) == {last.id}
    assert enqueued(engine, **in_window(engine)).id == last.id


def test_a_key_that_is_taken_while_its_former_job_is_deleted_stays_taken(make_engine, clock):
    engines = several(make_engine, 3)
    for name in map(str, range(10)):
        old = ended(engines[0], State.SUCCEEDED, **in_window(engines[0], key=name, queue=name))
        clock.advance(hours=1)
        wanted = in_window(engines[0], key=name, queue=name)

        def act(place, old=old, wanted=wanted):
            if place == 0:
                return insisted(lambda: deleted(engines[0], old)).ruling
            return enqueued(engines[place], **wanted).id

        ruling, *got = race(3, act)

        assert (ruling, engines[0].get([old.id])) == (Ruling.APPLIED, [None])
        assert {*got, enqueued(engines[0], **wanted).id} == {got[0]}


def test_a_large_payload_goes_with_its_job(engine):
    job = enqueued(engine, payload_json=BIG)
    assert deleted(engine, job).ruling is Ruling.APPLIED
    back = enqueued(engine, id=job.id, payload_json='"small"')  # an id may come back
    assert current(engine, back).payload_json == '"small"'


def test_what_a_deleted_job_has_cost_is_not_counted(engine):
    job = running(engine).evolve(cost_micros=7)
    settle(engine, job, Succeeded("1"))
    day = lifecycle.timedelta(days=1)
    assert engine.costs(since=engine.now() - day, until=engine.now() + day) == {("default", "greet"): 7}
    deleted(engine, current(engine, job))
    assert engine.costs(since=engine.now() - day, until=engine.now() + day) == {}


def test_a_job_that_expires_can_be_deleted(engine, clock):
    job = enqueued(engine, expires_at=engine.now() + lifecycle.timedelta(seconds=10))
    deleted(engine, job)
    clock.advance(seconds=20)
    assert engine.expired(limit=10) == []


# -------------------------------------------------------------------------------------------------- editing


def test_an_edited_job_is_claimed_where_it_is_now(engine, clock):
    first, job = enqueued(engine, queue="mail", priority=3), enqueued(engine, lane="a")
    change = lifecycle.edit(job, Edit("mail", "", 5), engine.now(), actor="ada", note="urgent")

    assert write(engine, change).ruling is Ruling.APPLIED

    assert claim(engine) == []
    assert [got.id for got in claim(engine, queues=["mail"])] == [job.id, first.id]
    event = engine.events(job.id)[-1]
    assert (event.kind, event.actor) == (EventKind.CHANGED, "ada")
    assert event.note == "queue default to mail, lane a to none, priority 0 to 5: urgent"


@pytest.mark.parametrize("lane", ["", "a"])
def test_a_job_that_is_due_later_runs_now_when_asked_to(engine, lane):
    job = enqueued(engine, lane=lane, due_at=engine.now() + lifecycle.timedelta(hours=1))
    assert claim(engine) == []

    assert write(engine, lifecycle.run_now(job, engine.now(), actor="ada")).ruling is Ruling.APPLIED

    assert [got.id for got in claim(engine)] == [job.id]


@pytest.mark.parametrize("lane", ["", "a"])
def test_a_job_may_be_put_off(engine, clock, lane):
    job = enqueued(engine, lane=lane)
    edited(engine, job, due_at=engine.now() + lifecycle.timedelta(minutes=5))
    assert claim(engine) == []
    clock.advance(minutes=5)
    assert [got.id for got in claim(engine)] == [job.id]


def test_a_job_that_was_claimed_meanwhile_is_not_edited(engine):
    job = enqueued(engine)
    held = claimed(engine, job)
    assert edited(engine, job, priority=5).ruling is Ruling.LOST
    assert current(engine, job).priority == 0
    assert settle(engine, held, Succeeded("1")).ruling is Ruling.APPLIED


# ------------------------------------------------------------------------------------------- many at a time


def test_many_changes_of_each_kind_are_written_in_one_turn(engine):
    now = engine.now()
    failed, over = [[ended(engine, State.FAILED, task=task) for _ in range(3)] for task in ("a", "b")]
    waiting, late = [[enqueued(engine, task=task) for _ in range(3)] for task in ("c", "d")]
    held = [running(engine, task="e") for _ in range(2)]
    gone = ended(engine, State.FAILED, task="f")
    deleted(engine, gone)
    keyed = ended(engine, State.FAILED, task="g", key="k", key_scope=Scope.ACTIVE)
    changes = [
        *(lifecycle.retry(job, now, actor="ada") for job in (*failed, gone, keyed)),
        *(lifecycle.delete(job, now, actor="ada") for job in (*over, *late)),
        *(lifecycle.edit(job, Edit(priority=7), now, actor="ada") for job in waiting),
        *(lifecycle.cancel(job, now, actor="ada") for job in held),
    ]

    rulings = [verdict.ruling for verdict in engine.turn(changes).verdicts]

    assert rulings == [Ruling.LOST if change.id == gone.id else Ruling.APPLIED for change in changes]
    assert [current(engine, job).state for job in (*failed, keyed)] == [State.PENDING] * 4
    assert engine.get([job.id for job in (*over, *late)]) == [None] * 6
    assert [current(engine, job).priority for job in waiting] == [7] * 3
    assert [current(engine, job).cancel_requested for job in held] == [True] * 2


def test_one_change_that_no_store_takes_leaves_the_others_alone(engine):
    jobs = [enqueued(engine, queue=f"q{number}") for number in range(3)]
    changes = [lifecycle.edit(job, Edit(priority=1), engine.now(), actor="ada") for job in jobs]
    changes[1] = changes[1]._replace(note="half a character \ud800")

    rulings = [verdict.ruling for verdict in engine.turn(changes).verdicts]

    assert rulings == [Ruling.APPLIED, Ruling.REFUSED, Ruling.APPLIED]
    assert [current(engine, job).priority for job in jobs] == [1, 0, 1]


def test_a_deleted_id_that_nobody_knows_is_lost_and_nothing_else(engine):
    kept = enqueued(engine)
    stranger = kept.evolve(id=new_id())
    assert deleted(engine, stranger).ruling is Ruling.LOST
    assert current(engine, kept) == kept


# ------------------------------------------------------------------------------------------------ an overview


def test_a_tally_groups_what_waits_runs_and_has_ended(engine, clock):
    hour = lifecycle.timedelta(hours=1)
    old = ended(engine, State.FAILED, queue="old")
    clock.advance(hours=2)
    start = engine.now()
    for _ in range(2):
        enqueued(engine, queue="mail")
    enqueued(engine, queue="mail", due_at=start + hour)
    enqueued(engine, queue="bulk", task="resize", lane="a", tenant="acme")
    held = running(engine, queue="run")
    ended(engine, State.SUCCEEDED, queue="done")
    failed = ended(engine, State.FAILED, queue="bad")
    retrying = running(engine, queue="again")
    settle(engine, retrying, Failed(an_error(start)._replace(traceback="x" * 5000)))
    clock.advance(minutes=1)

    found = {tally[:4]: tally[4:] for tally in engine.tally(since=engine.now() - hour, limit=100)}

    due_again = current(engine, retrying).due_at
    assert found == {
        ("again", "greet", State.PENDING, "RuntimeError"): (1, int(due_again <= engine.now()), due_again),
        ("bad", "greet", State.FAILED, "RuntimeError"): (1, 0, failed.finished_at),
        ("bulk", "resize", State.PENDING, ""): (1, 1, start),
        ("done", "greet", State.SUCCEEDED, ""): (1, 0, start),
        ("mail", "greet", State.PENDING, ""): (3, 2, start),
        ("run", "greet", State.RUNNING, ""): (1, 0, held.claimed_at),
    }
    assert old.finished_at < engine.now() - hour
    [acme] = engine.tally(since=engine.now() - hour, limit=100, tenant="acme")
    assert (acme.queue, acme.number) == ("bulk", 1)


def test_a_tally_reads_no_more_than_its_limit_of_a_queue_and_hides_no_other(engine):
    for number in range(5):
        enqueued(engine, queue="bulk", priority=number)
    enqueued(engine, queue="mail")
    found = {tally.queue: tally.number for tally in engine.tally(since=engine.now(), limit=3)}
    assert found == {"bulk": 3, "mail": 1}


def test_a_tally_counts_jobs_that_are_parked(engine):
    enqueued(engine, task="unknown")
    enqueued(engine, tenant="acme", task="paused")
    engine.save(Pause("acme", actor="ada", at=engine.now()), before=None)
    assert claim(engine, tasks=["greet", "paused"]) == []
    found = {tally.task: (tally.number, tally.due) for tally in engine.tally(since=engine.now(), limit=10)}
    assert found == {"paused": (1, 1), "unknown": (1, 1)}


# ---------------------------------------------------------------------------------------- another payload


@pytest.mark.parametrize(
    ("was", "new"), [('{"a":1}', '{"a":"é\\u2028"}'), ("[1]", BIG), (BIG, "null")], ids=["", "big", "small"]
)
@pytest.mark.parametrize("state", [State.PENDING, State.FAILED])
def test_an_edited_payload_is_what_the_next_attempt_is_given(engine, state, was, new):
    job = enqueued(engine, payload_json=was) if state is State.PENDING else ended(engine, state, payload_json=was)
    other, payload = enqueued(engine, queue="other", payload_json=was), NewPayload(new, 3)
    if state is State.PENDING:
        change = lifecycle.edit(job, Edit(payload=payload), engine.now(), actor="ada")
    else:
        change = lifecycle.retry(job, engine.now(), actor="ada", payload=payload)

    assert write(engine, change).ruling is Ruling.APPLIED

    assert current(engine, job) == change.after
    held = claimed(engine, change.after)
    assert (held.payload_json, held.task_version) == (new, 3)
    assert (engine.events(job.id)[-1].note, current(engine, other).payload_json) == ("payload edited", was)
    assert write(engine, change).ruling is not Ruling.APPLIED  # the revision it was edited from has passed


def test_a_retry_leaves_the_payload_as_it_is(engine):
    job = ended(engine, State.FAILED, payload_json=BIG)
    write(engine, lifecycle.retry(job, engine.now(), actor="ada"))
    assert (current(engine, job).payload_json, engine.events(job.id)[-1].note) == (BIG, "")
