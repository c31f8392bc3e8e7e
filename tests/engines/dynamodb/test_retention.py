"""Records to prune: how many are read for it, which go, and what goes with them."""

from datetime import datetime, timedelta
from uuid import uuid4

import pytest

from tests.support.making import (
    a_job,
    an_error,
    claim,
    claimed,
    current,
    ended,
    enqueued,
    running,
    settle,
)
from treadle.engines.dynamodb import retention
from treadle.engines.values import JobFilter, Retention
from treadle.model import Scope, State, lifecycle, new_id
from treadle.model.lifecycle import Failed, Succeeded
from treadle.model.retry import Retry

ALL = Retention({state: timedelta(0) for state in (State.SUCCEEDED, State.FAILED, State.CANCELLED)})


@pytest.fixture
def real(open_engine, far_url, layer, monkeypatch):
    """An engine by the machine's clock, which never looks at more than the ids tell it to."""
    monkeypatch.setattr(retention, "FULL_WALK_CHANCE", 0.0)
    engine = open_engine(far_url)
    engine.open()
    layer.forget()
    return engine


def finished(engine, number):
    engine.enqueue([a_job(engine.now()) for _ in range(number)])
    jobs = claim(engine, number)
    engine.turn([lifecycle.settle(job, Succeeded("1"), engine.now()) for job in jobs])
    return jobs


def test_records_that_are_too_young_are_not_even_read(real, layer):
    finished(real, 200)
    layer.forget()
    assert real.prune(Retention({State.SUCCEEDED: timedelta(days=1)}), limit=100) == 0
    assert (layer.count(), sum(layer.spent.reads.values())) == (4, 4)  # one unit a partition of ids


def test_records_that_are_old_enough_are_pruned_by_the_machines_clock(real, layer):
    jobs = finished(real, 20)
    assert real.prune(ALL, limit=15) == 15
    assert real.prune(ALL, limit=15) == 5
    assert real.get([job.id for job in jobs]) == [None] * 20


def test_a_job_that_was_made_long_ago_and_ended_just_now_stays(real):
    """The bound is on when it was made; when it ended decides."""
    made = datetime.now().astimezone() - timedelta(days=3)
    stamp = f"{int(made.timestamp() * 1000):012x}"
    old = f"{stamp[:8]}-{stamp[8:]}-7000-8000-000000000000"
    settle(real, claimed(real, enqueued(real, id=old)), Succeeded("1"))
    assert real.prune(Retention({State.SUCCEEDED: timedelta(days=2)}), limit=10) == 0
    assert real.prune(ALL, limit=10) == 1


def test_an_id_that_tells_no_time_is_pruned_too_in_the_end(real, monkeypatch):
    """Other programs make their ids by chance, as the standard's fourth version is."""
    id = f"ff{str(uuid4())[2:]}"
    settle(real, claimed(real, enqueued(real, id=id)), Succeeded("1"))
    assert real.prune(ALL, limit=10) == 0  # most of the times
    monkeypatch.setattr(retention, "FULL_WALK_CHANCE", 1.0)
    assert real.prune(ALL, limit=10) == 1  # once in a while
    assert real.get([id]) == [None]


@pytest.mark.parametrize("state", [State.SUCCEEDED, State.FAILED])
def test_what_may_go_is_found_behind_many_pages_of_what_stays_if_it_is_walked_to_the_end(real, monkeypatch, state):
    monkeypatch.setattr(retention, "PRUNE_PAGE", 3)
    monkeypatch.setattr(retention, "MAX_PAGES", 2)
    for task, number in (("stays", 200), ("goes", 6)):
        real.enqueue([a_job(real.now(), task=task, retry=Retry(max_attempts=1)) for _ in range(number)])
        outcome = Succeeded("1") if state is State.SUCCEEDED else Failed(an_error(real.now()))
        real.turn([lifecycle.settle(job, outcome, real.now()) for job in claim(real, number)])
    keep = Retention({}, {"goes": {state: timedelta(0)}})
    assert real.prune(keep, limit=5) == 0  # and the next call goes on from there
    assert real.prune(keep, limit=5, to_the_end=True) == 5
    assert real.prune(keep, limit=5, to_the_end=True) == 1
    assert real.count(JobFilter()) == {state: 200}


def test_walks_for_all_tasks_and_for_some_do_not_throw_each_other_back(real, monkeypatch):
    """As an app's prune and its own worker's do, which share an engine."""
    monkeypatch.setattr(retention, "PRUNE_PAGE", 3)
    monkeypatch.setattr(retention, "MAX_PAGES", 2)
    for task, number in (("stays", 100), ("goes", 4)):
        real.enqueue([a_job(real.now(), task=task) for _ in range(number)])
        real.turn([lifecycle.settle(job, Succeeded("1"), real.now()) for job in claim(real, number)])
    keep, gone = Retention({}, {"goes": {State.SUCCEEDED: timedelta(0)}}), 0
    for _ in range(40):
        real.prune(keep._replace(only=frozenset(("another",))), limit=10)
        gone += real.prune(keep, limit=10)
    assert gone == 4


@pytest.mark.parametrize("days", [0, 1, 100_000, 999_999_999])
def test_any_age_to_keep_is_understood(real, days):
    job = finished(real, 1)[0]
    assert real.prune(Retention({State.SUCCEEDED: timedelta(days=days)}), limit=10) == (0 if days else 1)
    assert (real.get([job.id]) == [None]) is (days == 0)


@pytest.mark.covers("003-S20.a")
def test_a_state_that_is_not_named_is_kept_for_ever(engine, clock):
    kept, gone = ended(engine, State.FAILED), ended(engine, State.SUCCEEDED)
    clock.advance(days=10_000)
    week = timedelta(days=7)
    assert engine.prune(Retention({State.SUCCEEDED: week, State.CANCELLED: week}), limit=10) == 1
    assert (engine.get([kept.id, gone.id])) == [kept, None]
    assert engine.find(JobFilter(state=State.FAILED), limit=10).jobs == [kept]


def test_pruning_takes_everything_of_a_job_along_but_its_trail(engine, table, clock):
    """Its line in a list, its pieces, its key once that is over."""
    before = table.places()
    job = running(
        engine, retry=Retry(max_attempts=2, base=0, jitter=0), payload_json=f'"{"x" * 900_000}"',
        key="ada", key_scope=Scope.WINDOW, key_until=clock.now() + timedelta(hours=1),
        expires_at=clock.now() + timedelta(days=1),
    )  # fmt: skip
    settle(engine, job, Failed(an_error(clock.now())))
    settle(engine, claimed(engine, job), Failed(an_error(clock.now())))
    assert current(engine, job).state is State.FAILED
    assert len(engine.events(job.id)) == 2
    clock.advance(days=1)
    assert engine.prune(ALL, limit=10) == 1
    kept = [place for place in table.places() if not place.pk.startswith(("slots", "events#", "unsealed#"))]
    assert kept == before
    assert len(engine.events(job.id)) == 2


def test_a_job_that_is_retried_meanwhile_is_not_pruned(engine, table, clock, monkeypatch):
    job = ended(engine, State.FAILED)
    clock.advance(days=1)
    forget = engine._pruner._delete

    def late(item, now):
        engine.turn([lifecycle.retry(job, clock.now(), actor="ada")])
        return forget(item, now)

    monkeypatch.setattr(engine._pruner, "_delete", late)
    assert engine.prune(ALL, limit=10) == 0
    assert [got.id for got in claim(engine)] == [job.id]


def test_a_job_whose_key_is_still_held_stays_and_goes_when_it_is_free(engine, clock):
    window = {"key": "ada", "key_scope": Scope.WINDOW, "key_until": clock.now() + timedelta(days=2)}
    job = ended(engine, State.SUCCEEDED, **window)
    ever = ended(engine, State.SUCCEEDED, key="eve", key_scope=Scope.EVER)
    clock.advance(days=1)
    assert engine.prune(ALL, limit=10) == 0
    clock.advance(days=2)
    assert engine.prune(ALL, limit=10) == 1
    assert engine.get([job.id, ever.id]) == [None, ever]


def test_the_oldest_go_first(engine, clock):
    jobs = []
    for _ in range(6):
        jobs.append(ended(engine, State.SUCCEEDED))
        clock.advance(seconds=1)
    clock.advance(days=1)
    assert engine.prune(ALL, limit=2) == 2
    assert [job is None for job in engine.get([job.id for job in jobs])] == [True, True, False, False, False, False]


def test_an_id_made_now_lies_below_the_bound_of_now():
    made = new_id()
    assert made <= retention._made_before(datetime.now().astimezone() + timedelta(milliseconds=5))
    assert made > retention._made_before(datetime.now().astimezone() - timedelta(seconds=5))


def test_jobs_that_keep_their_key_do_not_keep_others_from_being_pruned(engine, clock):
    for number in range(30):
        job = enqueued(engine, key=f"k{number}", key_scope=Scope.EVER)
        settle(engine, claimed(engine, job), Succeeded())
    old = [ended(engine, State.SUCCEEDED) for _ in range(5)]
    clock.advance(days=1)

    assert engine.prune(ALL, limit=3) == 3
    assert engine.prune(ALL, limit=3) == 2
    assert engine.get([job.id for job in old]) == [None] * 5
    assert engine.count(JobFilter()) == {State.SUCCEEDED: 30}
