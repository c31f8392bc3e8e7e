"""The plain path and the general path write the same rows for the same successes."""

import random
from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest

from tests.engines.sqlite.counting import plans
from tests.support.making import LEASE, a_job, an_error, claim, current, enqueued, running
from treadle.engines import connect
from treadle.engines.contract import Engine
from treadle.engines.values import Claim, ClaimedJob, Lease, Ruling
from treadle.model import FollowUp, Job, OnEnd, Scope, State, lifecycle, new_id
from treadle.model.lifecycle import Failed, Succeeded, Success
from treadle.model.retry import Retry
from treadle.testing import FakeClock

TABLES = ("treadle_jobs", "treadle_finished", "treadle_events", "treadle_keys")
RESULTS = (None, "1", '{"a": "\u2603"}', '"\\"quoted\\""', "[]")
REFUSED = ('"\ud800"', '"\0"')


@pytest.fixture(params=[False, True], ids=["usual audit", "audit all"])
def twins(clock: FakeClock, request: pytest.FixtureRequest) -> Iterator[tuple[Engine, Engine]]:
    """Two stores in memory, alike."""
    both = [connect("sqlite://", clock=clock.now, audit_all=request.param) for _ in range(2)]
    yield both[0], both[1]
    for engine in both:
        engine.close()


def random_job(number: int, now: datetime) -> Job:
    chance = random.Random(number)
    fields: dict[str, object] = {
        "priority": chance.randrange(3),
        "tenant": chance.choice(["default", "acme"]),
        "lane": chance.choice(["", "", "a", "b"]),
        "timeout": chance.choice([None, 2.5]),
        "schedule": chance.choice([None, "nightly"]),
        "retry": Retry(max_attempts=chance.randint(1, 4), cap=chance.choice([None, 60.0])),
        "expires_at": chance.choice([None, now + timedelta(days=1)]),
    }
    if chance.random() < 0.3:
        scope = chance.choice(list(Scope))
        until = now + timedelta(hours=1) if scope is Scope.WINDOW else None
        fields |= {"key": f"k{number}", "key_scope": scope, "key_until": until}
    if chance.random() < 0.3:
        fields["on_end"] = OnEnd(succeeded=FollowUp(event="done", task=chance.choice(["", "after"])))
    return a_job(now, payload_json=f'{{"n": {number}}}', **fields)


def success(job: Job, started_at: datetime, result: str | None = None) -> Success:
    """The end of an attempt as a worker tells it."""
    ended = job.evolve(started_at=started_at)
    return Success(job.id, job.lease_token or "", job.revision, started_at, result, lambda: ended)


def rows(engine: Engine, table: str) -> list[tuple[object, ...]]:
    return sorted(engine.file.rows(f"select * from {table}"), key=repr)


@pytest.mark.parametrize("seed", range(6))
def test_both_paths_write_the_same_rows(twins: tuple[Engine, Engine], clock: FakeClock, seed: int) -> None:
    jobs = [random_job(1000 * seed + number, clock.now()) for number in range(150)]
    token, chance = new_id(), random.Random(seed)
    for engine in twins:
        engine.enqueue(jobs)
        first = claim(engine, 20, token="first")
        engine.turn([lifecycle.settle(job, Failed(an_error(clock.now()), 0.0), clock.now()) for job in first])
    held = [engine.turn([], Claim(token, "w1", 150, LEASE)).jobs for engine in twins]
    assert held[0] == held[1]
    ends = []
    for job in held[0]:
        started = clock.now() + timedelta(seconds=chance.choice([-1, 0, 5]))
        ends.append(success(job, started, chance.choice(RESULTS)))
        if chance.random() < 0.1:  # as the keeper tells of it meanwhile
            for engine in twins:
                engine.extend([Lease(job.id, token, started_at=started)], lease=LEASE)
        if chance.random() < 0.1:
            for engine in twins:
                engine.turn([lifecycle.cancel(job, clock.now(), actor="op")])
    clock.advance(seconds=3)
    repeated = ends[:30]
    for batch in (ends, repeated):
        quick = twins[0].turn(batch).verdicts
        general = twins[1].turn([end.change(clock.now()) for end in batch]).verdicts
        assert quick == general
    for table in TABLES:
        assert rows(twins[0], table) == rows(twins[1], table)
    assert {one.ruling for one in quick} >= {Ruling.ALREADY}


def test_a_value_that_cannot_be_stored_falls_alone(twins: tuple[Engine, Engine], clock: FakeClock) -> None:
    engine = twins[0]
    engine.enqueue([a_job(clock.now()) for _ in range(20)])
    jobs = claim(engine, 20)
    results = [*REFUSED, *["1"] * 18]
    ends = [success(job, clock.now(), result) for job, result in zip(jobs, results, strict=True)]
    verdicts = engine.turn(ends).verdicts
    assert [verdict.ruling for verdict in verdicts] == [Ruling.REFUSED] * 2 + [Ruling.APPLIED] * 18
    assert {current(engine, job).state for job in jobs[2:]} == {State.SUCCEEDED}
    assert {current(engine, job).state for job in jobs[:2]} == {State.RUNNING}


def test_a_success_of_a_zombie_is_refused(twins: tuple[Engine, Engine], clock: FakeClock) -> None:
    engine = twins[0]
    job = running(engine)
    for zombie in (
        success(job, clock.now())._replace(token="another"),
        success(job, clock.now())._replace(revision=job.revision - 1),
        success(job.evolve(lease_token="another"), clock.now()),
    ):
        written = engine.turn([zombie._replace(job=lambda job=job: job.evolve(lease_token="another"))]).verdicts
        assert [verdict.ruling for verdict in written] == [Ruling.LOST]
    assert current(engine, job) == job


def test_a_turn_of_plain_jobs_takes_few_statements(clock: FakeClock) -> None:
    engine = connect("sqlite://", clock=clock.now)
    engine.enqueue([a_job(clock.now()) for _ in range(200)])
    ends = [success(job, clock.now()) for job in claim(engine, 100)]
    found = plans(engine, lambda: engine.turn(ends, Claim(new_id(), "w", 100, LEASE)))
    writes = [sql for sql in found if not sql.lstrip().startswith("select")]
    assert len(writes) == 3
    assert len(found) <= 16
    engine.close()


def test_two_ends_for_one_job_are_a_mistake_of_the_caller(twins: tuple[Engine, Engine], clock: FakeClock) -> None:
    job = running(twins[0])
    end = success(job, clock.now())
    for pair in ([end, end], [end, lifecycle.settle(job, Succeeded(), clock.now())]):
        with pytest.raises(ValueError, match="at most one change a job"):
            twins[0].turn(pair)


def test_what_a_claim_gives_says_the_same_as_the_whole_job(twins: tuple[Engine, Engine], clock: FakeClock) -> None:
    engine = twins[0]
    engine.enqueue([random_job(number, clock.now()) for number in range(100)])
    enqueued(engine, retry=Retry(max_attempts=1))
    wish = Claim(new_id(), "w1", 200, LEASE)
    for turn in (engine.turn([], wish), engine.turn([], wish)):
        assert len(turn.claimed) == 101
        assert turn.jobs == engine.get([job.id for job in turn.claimed])
        for claimed in turn.claimed:
            assert claimed[:-1] == ClaimedJob.of(claimed.job())[:-1]
