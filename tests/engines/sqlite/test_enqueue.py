"""Storing new jobs: one by one, in runs that differ in id and payload alone, and when some are known already."""

import random
from datetime import datetime, timedelta

import pytest

from tests.engines.sqlite.counting import plans
from tests.support.making import a_job, claim, current, settle
from treadle.engines import connect
from treadle.engines.contract import Engine
from treadle.engines.rows import COLUMNS
from treadle.engines.sqlite.enqueue import SHARED, shared_row
from treadle.engines.sqlite.rows import row_from
from treadle.model import FollowUp, Job, OnEnd, Scope
from treadle.model.lifecycle import Succeeded
from treadle.model.retry import Retry
from treadle.testing import FakeClock


def some_job(number: int, now: datetime) -> Job:
    """One of few kinds, so that a batch has runs of each."""
    chance = random.Random(number // 7)
    window = {"key": f"k{number}", "key_scope": Scope.WINDOW, "key_until": now + timedelta(hours=1)}
    return a_job(
        now,
        payload_json=f'{{"n": "{number} \u2603"}}',
        lane=chance.choice(["", "a"]),
        priority=chance.randrange(3),
        due_at=now + timedelta(seconds=chance.choice([0, 0, 60])),
        expires_at=chance.choice([None, now + timedelta(days=1)]),
        timeout=chance.choice([None, 1.5]),
        retry=Retry(max_attempts=chance.randint(1, 3), cap=chance.choice([None, 60.0])),
        schedule=chance.choice([None, "nightly"]),
        on_end=chance.choice([None, OnEnd(failed=FollowUp(event="x", wants=["job_id"]))]),
        trace=chance.choice([None, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"]),
        **chance.choice([{}, {}, window]),
    )


def test_a_run_says_of_a_job_what_its_row_says(clock: FakeClock) -> None:
    for number in range(0, 140, 7):
        job = some_job(number, clock.now())
        row = dict(zip(COLUMNS, row_from(job), strict=True))
        assert shared_row(job) == tuple(row[name] for name in SHARED)


@pytest.mark.parametrize("audit_all", [False, True])
def test_jobs_are_stored_alike_one_by_one_and_together(clock: FakeClock, audit_all: bool) -> None:
    jobs = [some_job(number, clock.now()) for number in range(100)]
    single, together = (connect("sqlite://", clock=clock.now, audit_all=audit_all) for _ in range(2))
    receipts = [single.enqueue([job])[0] for job in jobs]
    assert together.enqueue(jobs) == receipts
    assert {receipt.created for receipt in receipts} == {True}
    for table in ("treadle_jobs", "treadle_keys", "treadle_events"):
        query = f"select * from {table} order by 1, 2, 3"
        assert single.file.rows(query) == together.file.rows(query)
    assert [current(together, job) for job in jobs] == [receipt.job for receipt in receipts]
    single.close()
    together.close()


def test_of_a_batch_with_known_jobs_each_hears_what_became_of_it(engine: Engine, clock: FakeClock) -> None:
    known, ended, new = (a_job(clock.now(), payload_json=f"{number}") for number in range(3))
    engine.enqueue([known, ended])
    [_, _] = claim(engine)
    settle(engine, current(engine, ended), Succeeded())
    receipts = engine.enqueue([job.evolve(payload_json='"other"') for job in (ended, new, known, new)])
    assert [receipt.created for receipt in receipts] == [False, True, False, False]
    assert [receipt.job.payload_json for receipt in receipts] == ["1", '"other"', "0", '"other"']


def test_of_one_known_job_it_is_said_too(engine: Engine, clock: FakeClock) -> None:
    job = a_job(clock.now())
    assert engine.enqueue([job])[0].created
    [again] = engine.enqueue([job.evolve(payload_json="2")])
    assert (again.created, again.job.payload_json) == (False, "{}")


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("bad", ['"\ud800"', '"\0"'])
def test_one_value_that_cannot_be_stored_is_refused_and_takes_no_key(
    engine: Engine, clock: FakeClock, bad: str, key: str | None
) -> None:
    fields = {"key": key, "key_scope": key and Scope.ACTIVE}
    [refused] = engine.enqueue([a_job(clock.now(), payload_json=bad, **fields)])
    assert refused.refused
    assert engine.enqueue([a_job(clock.now(), **fields)])[0].created


def test_a_key_of_a_known_job_goes_to_the_new_one_of_the_same_batch(engine: Engine, clock: FakeClock) -> None:
    keyed = {"key": "k", "key_scope": Scope.ACTIVE}
    ended, new, late = (a_job(clock.now(), **keyed) for _ in range(3))
    engine.enqueue([ended])
    settle(engine, claim(engine)[0], Succeeded())
    receipts = engine.enqueue([ended, new, late])
    assert [(receipt.created, receipt.job.id) for receipt in receipts] == [
        (False, ended.id), (True, new.id), (False, new.id),
    ]  # fmt: skip
    assert not engine.enqueue([a_job(clock.now(), **keyed)])[0].created


def test_one_plain_job_is_one_statement_and_so_is_a_batch(clock: FakeClock) -> None:
    engine = connect("sqlite://", clock=clock.now)
    engine.open()
    assert len(plans(engine, lambda: engine.enqueue([a_job(clock.now())]))) == 1
    assert len(plans(engine, lambda: engine.enqueue([a_job(clock.now()) for _ in range(100)]))) == 1
    assert len(plans(engine, lambda: engine.enqueue([a_job(clock.now(), key="k", key_scope=Scope.ACTIVE)]))) == 2
    engine.close()
