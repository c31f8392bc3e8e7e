"""Successes as values beside whole changes in one turn: each has its own verdict, and none takes another along."""

import random

import pytest

from tests.engines.conformance.test_success_path import HALF, LOST, by_change, by_values, end, started
from tests.support.making import LEASE, a_job, an_error, claim, current, enqueued, race, running, several, write
from treadle.engines.values import Claim, ClaimedJob, JobFilter, Ruling
from treadle.model import PAYLOAD_CAP, FollowUp, OnEnd, Retry, Scope, State, lifecycle, new_id
from treadle.model.lifecycle import Failed, Snoozed

__all__ = ["end"]  # the fixture: both ways

BATCH = 50


def begun(engine, number, **fields):
    """So many jobs, claimed and begun."""
    engine.enqueue([a_job(engine.now(), queue="batch", **fields) for _ in range(number)])
    jobs = claim(engine, number, queues=["batch"])
    assert len(jobs) == number
    return [started(engine, job) for job in jobs]


# ----------------------------------------------------------------------------------------------- bad values


@pytest.mark.parametrize("place", [0, 29, 59])
def test_a_bad_result_is_refused_alone_among_sixty_and_the_claim_still_works(engine, clock, end, place):
    jobs = begun(engine, 60)
    waiting = [enqueued(engine) for _ in range(3)]
    results = ["1"] * 60
    results[place] = f'"{HALF}"'
    changes = [end(job, clock.now(), result) for job, result in zip(jobs, results, strict=True)]

    turn = engine.turn(changes, Claim(token=new_id(), worker="w1", limit=2, lease=LEASE))

    wanted = [Ruling.APPLIED] * 60
    wanted[place] = Ruling.REFUSED
    assert [verdict.ruling for verdict in turn.verdicts] == wanted
    assert turn.verdicts[place].why
    assert turn.verdicts[place].holder is None
    assert current(engine, jobs[place]).state is State.RUNNING
    assert engine.count(JobFilter(state=State.SUCCEEDED)) == {State.SUCCEEDED: 59}
    assert [job.id for job in turn.jobs] == [job.id for job in waiting[:2]]


ODD = {
    "an escaped nul": '"a\\u0000b"',
    "a nul": '"a\0b"',
    "half a character": f'"{HALF}"',
    "not JSON": "{",
    "nothing at all": "",
    "as large as allowed": '"' + "x" * (PAYLOAD_CAP - 2) + '"',
    "too large": '"' + "☃" * PAYLOAD_CAP + '"',
}


@pytest.mark.parametrize("result", ODD.values(), ids=ODD)
def test_what_the_store_does_with_an_odd_result_is_the_same_both_ways(engine, clock, result):
    """Kept to the letter or refused alone, as the general way does it."""
    general, before, short, behind = begun(engine, 4)

    [wanted] = engine.turn([by_change(general, clock.now(), result)]).verdicts
    changes = [
        by_values(before, clock.now(), "1"),
        by_values(short, clock.now(), result),
        by_values(behind, clock.now(), "3"),
    ]
    verdicts = engine.turn(changes).verdicts

    assert [verdict.ruling for verdict in verdicts] == [Ruling.APPLIED, wanted.ruling, Ruling.APPLIED]
    assert bool(verdicts[1].why) is bool(wanted.why)
    assert current(engine, short).state is current(engine, general).state
    assert current(engine, short).result_json == current(engine, general).result_json
    assert [current(engine, job).result_json for job in (before, behind)] == ["1", "3"]


def test_a_bad_result_does_not_free_the_key_of_its_job(engine, clock, end):
    job = started(engine, running(engine, key="k", key_scope=Scope.ACTIVE))

    engine.turn([end(job, clock.now(), f'"{HALF}"')])

    [rival] = engine.enqueue([a_job(clock.now(), key="k", key_scope=Scope.ACTIVE)])
    assert (rival.created, rival.job.id) == (False, job.id)


# -------------------------------------------------------------------------------------------- fifty of all kinds


def plain(engine, clock, name):
    [job] = begun(engine, 1, task=name)
    return job


def keyed(engine, clock, name):
    [job] = begun(engine, 1, key=name, key_scope=Scope.ACTIVE)
    return job


def followed(engine, clock, name):
    [job] = begun(engine, 1, on_end=OnEnd(succeeded=FollowUp(event="DONE", task="tell", queue="told")))
    return job


def settled_before(engine, clock, name):
    job = plain(engine, clock, name)
    engine.turn([by_change(job, clock.now())])
    return job


def asked_to_stop(engine, clock, name):
    job = plain(engine, clock, name)
    write(engine, lifecycle.cancel(job, clock.now(), actor="ann"))
    return job


def not_there(engine, clock, name):
    return a_job(clock.now(), state=State.RUNNING, lease_token=new_id(), revision=1, started_at=clock.now())


def lost(engine, clock, name):
    return LOST["another token"](engine, clock)


SITUATIONS = (plain, keyed, followed, settled_before, asked_to_stop, not_there, lost)


def story(engine, job, verdict):
    """What can be seen of a job and of the verdict on it, without what differs between twins."""
    [now] = engine.get([job.id])
    same = {"id": "", "lease_token": "", "key": None, "task": "", "claimed_at": None}
    return (
        verdict.ruling,
        verdict.job and verdict.job.evolve(**same),
        bool(verdict.why),
        now and now.evolve(**same),
        [event._replace(job_id="") for event in engine.events(job.id)],
    )


@pytest.mark.parametrize("audit_all", [False, True], ids=["quiet", "everything audited"])
def test_a_batch_of_fifty_values_and_changes_ends_as_the_same_batch_of_changes(make_engine, clock, audit_all):
    engine, dice = make_engine(audit_all=audit_all), random.Random(7)
    kinds = [dice.choice(SITUATIONS) for _ in range(BATCH)]
    results = [dice.choice(['"☃"', None, "[1]", f'"{HALF}"']) for _ in range(BATCH)]
    ways = [dice.choice(["values", "values", "change", "snooze", "failure"]) for _ in range(BATCH)]

    def settled(name, short):
        jobs = [kind(engine, clock, f"{name}{n}") for n, kind in enumerate(kinds)]
        changes = []
        for job, result, way in zip(jobs, results, ways, strict=True):
            if way == "snooze":
                changes.append(lifecycle.settle(job, Snoozed(60), clock.now()))
            elif way == "failure":
                changes.append(lifecycle.settle(job, Failed(an_error(clock.now()), 60.0), clock.now()))
            else:
                changes.append((short if way == "values" else by_change)(job, clock.now(), result))
        verdicts = engine.turn(changes).verdicts
        rivals = [receipt.created for receipt in engine.enqueue(
            [a_job(clock.now(), queue="rivals", key=f"{name}{n}", key_scope=Scope.ACTIVE) for n in range(BATCH)]
        )]  # fmt: skip
        told = engine.count(JobFilter(queue="told"))
        return [story(engine, *pair) for pair in zip(jobs, verdicts, strict=True)], rivals, told

    general, rivals, told = settled("general", by_change)
    short, short_rivals, short_told = settled("short", by_values)

    assert short == general
    assert short_rivals == rivals
    assert {state: 2 * number for state, number in told.items()} == short_told
    assert {Ruling.APPLIED, Ruling.ALREADY, Ruling.STALE, Ruling.LOST, Ruling.REFUSED} <= {one[0] for one in general}


def test_successes_and_the_next_claim_are_one_turn(engine, clock, end):
    jobs, waiting = begun(engine, 20), [enqueued(engine) for _ in range(20)]
    wish = Claim(token=new_id(), worker="w1", limit=20, lease=LEASE)

    turn = engine.turn([end(job, clock.now()) for job in jobs], wish)

    assert [verdict.ruling for verdict in turn.verdicts] == [Ruling.APPLIED] * 20
    assert [one.id for one in turn.claimed] == [job.id for job in waiting]


def test_a_turn_whose_answer_was_lost_is_repeated_and_gives_the_same_jobs(engine, clock, end):
    jobs, waiting = begun(engine, 20), [enqueued(engine) for _ in range(30)]
    wish = Claim(token=new_id(), worker="w1", limit=20, lease=LEASE)
    changes = [end(job, clock.now()) for job in jobs]
    first = engine.turn(changes, wish)
    after = engine.get([job.id for job in jobs])

    again = engine.turn(changes, wish)

    assert [verdict.ruling for verdict in again.verdicts] == [Ruling.ALREADY] * 20
    assert again.jobs == first.jobs
    assert [job.id for job in again.jobs] == [job.id for job in waiting[:20]]
    assert engine.get([job.id for job in jobs]) == after
    assert engine.count(JobFilter(state=State.RUNNING)) == {State.RUNNING: 20}


def test_of_two_who_end_the_same_jobs_at_once_each_end_is_written_once(make_engine, clock):
    """One thread repeats what the other sends, as after a lost answer: applied for one, already for the other."""
    engines = several(make_engine, 2)
    for _ in range(5):
        jobs = begun(engines[0], 20)

        def ended(place, jobs=jobs):
            verdicts, left = {}, jobs
            while left:  # a row that the other has locked just now is tried again
                order = left if place else left[::-1]
                answers = engines[place].turn([by_values(job, clock.now()) for job in order]).verdicts
                verdicts |= {job.id: verdict.ruling for job, verdict in zip(order, answers, strict=True)}
                left = [job for job in order if verdicts[job.id] is Ruling.BUSY]
            return verdicts

        one, other = race(2, ended)

        for job in jobs:
            assert {one[job.id], other[job.id]} == {Ruling.APPLIED, Ruling.ALREADY}
            assert current(engines[0], job) == by_change(job, clock.now()).after


# ------------------------------------------------------------------------------------------ what a claim gives

KINDS = {
    "plain": {},
    "with options": {"tenant": "acme", "lane": "eu", "priority": 3, "timeout": 1.5, "payload_json": '{"☃":[1, 2]}'},
    "of one attempt": {"retry": Retry(max_attempts=1)},
    "with a key": {"key": "k", "key_scope": Scope.EVER},
    "with a follow-up": {"on_end": OnEnd(failed=FollowUp(task="tell"))},
}


@pytest.mark.parametrize("fields", KINDS.values(), ids=KINDS)
def test_a_claimed_job_says_the_same_in_short_and_as_a_whole(engine, fields):
    job = enqueued(engine, **fields)

    [got] = engine.turn([], Claim(token=new_id(), worker="w1", limit=5, lease=LEASE)).claimed

    assert got.job() == current(engine, job)
    assert got[:-1] == ClaimedJob.of(got.job())[:-1]
    assert got.plain is ("key" not in fields and "on_end" not in fields)
