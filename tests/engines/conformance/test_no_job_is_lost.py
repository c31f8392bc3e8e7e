"""Promise 2: no acknowledged job is lost. Enqueue is idempotent by id and answers for every job."""

from datetime import datetime, timedelta, timezone

import pytest

from tests.support.making import (
    OUTCOMES,
    a_job,
    an_error,
    claim,
    claimed,
    current,
    ended,
    enqueued,
    every_outcome,
    race,
    running,
    settle,
    write,
)
from treadle.engines.values import JobFilter, Lease, Ruling
from treadle.model import Job, JobError, Progress, Retry, Scope, State, lifecycle, new_id
from treadle.model.lifecycle import Succeeded


@pytest.mark.covers("001-R23.a", "000-AC-26.a", "002-T1.a")
def test_a_new_job_is_pending_and_answered_with_its_id(engine, clock):
    job = a_job(clock.now())

    [receipt] = engine.enqueue([job])

    assert receipt.created
    assert receipt.refused == ""
    assert receipt.job.id == job.id
    assert receipt.job == current(engine, job)
    assert receipt.job.state is State.PENDING
    assert (receipt.job.attempt, receipt.job.failures, receipt.job.crashes, receipt.job.revision) == (0, 0, 0, 0)


def test_the_same_id_while_pending_answers_with_the_first_job(engine, clock):
    first = enqueued(engine, payload_json='"first"')

    [receipt] = engine.enqueue([a_job(clock.now(), id=first.id, payload_json='"second"')])

    assert not receipt.created
    assert receipt.job == first
    assert current(engine, first) == first


def test_the_same_id_while_running_answers_with_the_running_job(engine, clock):
    held = running(engine)

    [receipt] = engine.enqueue([a_job(clock.now(), id=held.id)])

    assert not receipt.created
    assert receipt.job == held
    assert claim(engine) == []


def alone(now):
    return []


def beside_another(now):
    """Not alike, so that a store cannot write the two by what they share."""
    return [a_job(now, queue="beside", task="another", priority=3)]


every_bulk = pytest.mark.parametrize("others", [alone, beside_another])


@every_bulk
@pytest.mark.parametrize("state", [state for state in State if state.final])
def test_the_same_id_after_the_end_answers_with_the_finished_job_and_does_not_run_it_again(
    engine, clock, state, others
):
    job = ended(engine, state)

    receipt, *rest = engine.enqueue([a_job(clock.now(), id=job.id), *others(clock.now())])

    assert not receipt.created
    assert receipt.job == job
    assert current(engine, job) == job
    assert claim(engine) == []
    assert all(other.created for other in rest)


def test_bulk_answers_with_a_receipt_for_every_job_in_order(engine, clock):
    waiting, done = enqueued(engine, queue="other"), ended(engine, State.SUCCEEDED)
    fresh = [a_job(clock.now()) for _ in range(3)]
    again = [a_job(clock.now(), id=known.id) for known in (waiting, done)]

    receipts = engine.enqueue([fresh[0], again[0], fresh[1], again[1], fresh[2]])

    assert [receipt.job.id for receipt in receipts] == [fresh[0].id, waiting.id, fresh[1].id, done.id, fresh[2].id]
    assert [receipt.created for receipt in receipts] == [True, False, True, False, True]
    assert receipts[1].job == waiting
    assert receipts[3].job == done


def test_the_same_id_twice_in_one_call_makes_one_job(engine, clock):
    id = new_id()
    twins = [a_job(clock.now(), id=id, payload_json=text) for text in ('"one"', '"two"')]

    receipts = engine.enqueue([*twins, a_job(clock.now())])

    assert [receipt.created for receipt in receipts] == [True, False, True]
    assert [receipt.job.payload for receipt in receipts[:2]] == ["one", "one"]
    assert engine.count(JobFilter()) == {State.PENDING: 2}


def test_a_thousand_jobs_in_one_call_are_all_there_and_all_claimed(engine, clock):
    jobs = [a_job(clock.now(), payload_json=f'{{"number":{number}}}') for number in range(1000)]

    receipts = engine.enqueue(jobs)

    assert [receipt.job for receipt in receipts] == jobs
    assert all(receipt.created for receipt in receipts)
    assert engine.get([job.id for job in jobs]) == jobs
    assert [job.id for job in claim(engine, 1000)] == [job.id for job in jobs]


def test_no_jobs_are_no_trouble(engine):
    assert engine.enqueue([]) == []


def test_what_one_engine_acknowledged_another_one_sees(engine, make_engine):
    job = enqueued(engine)
    engine.close()

    assert make_engine().get([job.id]) == [job]


@pytest.mark.parametrize("round_", range(5))
def test_engines_that_open_a_new_store_at_the_same_moment_all_get_in(make_engine, clock, round_):
    engines = [make_engine() for _ in range(8)]

    receipts = race(8, lambda place: engines[place].enqueue([a_job(clock.now())])[0])

    assert all(receipt.created for receipt in receipts)
    assert engines[0].count(JobFilter()) == {State.PENDING: 8}


@every_bulk
def test_a_job_is_created_at_the_time_of_the_store_not_of_the_caller(engine, clock, others):
    for offset in (timedelta(hours=-1), timedelta(0), timedelta(hours=1)):
        receipt, *_ = engine.enqueue([a_job(clock.now() + offset), *others(clock.now() + offset)])

        assert receipt.job.created_at == clock.now()
        assert receipt.job.due_at == clock.now()
        assert current(engine, receipt.job) == receipt.job


def test_a_job_meant_for_later_keeps_its_due_time(engine, clock):
    later = clock.now() + timedelta(days=40, microseconds=1)

    job = enqueued(engine, due_at=later)

    assert current(engine, job).due_at == later
    assert current(engine, job).created_at == clock.now()


def test_times_of_any_zone_come_back_the_same_moment_in_utc(engine, clock):
    bombay = timezone(timedelta(hours=5, minutes=30))
    later = datetime(2026, 6, 1, 9, 30, 0, 123456, tzinfo=bombay)

    job = current(engine, enqueued(engine, due_at=later, expires_at=later + timedelta(days=1)))

    assert job.due_at == later
    assert job.expires_at == later + timedelta(days=1)
    assert {moment.utcoffset() for moment in (job.due_at, job.expires_at, job.created_at)} == {timedelta(0)}


def full_job(now: datetime) -> Job:
    """A job that leaves no field of a request at its default."""
    return a_job(
        now,
        task="mail.send/ü",
        tenant="acme ✓",
        queue="mail; drop table jobs --",
        lane='l\'ane "7" \\ %s ? :x $1',
        task_version=7,
        priority=-(2**31),
        payload_json='{"text":"ï ☃ 𝄞 \\" \\\\ \\n","big":123456789012345678901234567890,"small":1e-300,"deep":[[]]}',
        retry=Retry(max_attempts=9, base=0.25, cap=None, jitter=0.0),
        timeout=1.5,
        due_at=now + timedelta(microseconds=1),
        expires_at=now + timedelta(days=400, microseconds=999_999),
        key='it\'s "a" key: ключ 鍵',
        key_scope=Scope.WINDOW,
        key_until=now + timedelta(hours=1, microseconds=3),
    )


def test_every_field_of_a_request_survives_the_round_trip(engine, clock):
    job = full_job(clock.now())

    [receipt] = engine.enqueue([job])

    assert receipt.job == job
    assert current(engine, job) == job


@pytest.mark.parametrize(
    "field",
    [
        {"priority": 2**31 - 1},
        {"retry": Retry(max_attempts=1, base=0.0, cap=0.0, jitter=0.5)},
        {"retry": Retry(max_attempts=10_000, base=1e9, cap=1e9, jitter=1e9)},
        {"timeout": 0.001},
        {"payload_json": "null"},
        {"payload_json": '""'},
        {"payload_json": '"' + "é" * 200_000 + '"'},
        {"payload_json": '[1.0,1,-0.0,1e3,"\\u00e9","\u2028","\\\\u0000"]'},
        {"key": "x" * 500, "key_scope": Scope.EVER},
        {"key": "x", "key_scope": Scope.PENDING},
        {"tenant": "t" * 200, "queue": "q" * 200, "task": "k" * 200, "lane": "l" * 200},
    ],
    ids=",".join,
)
def test_values_at_the_edge_survive_the_round_trip(engine, clock, field):
    job = enqueued(engine, **field)

    found = current(engine, job)

    assert found == job
    assert all(getattr(found, name) == value for name, value in field.items())


def test_a_claimed_job_is_stored_as_it_was_handed_out(engine, clock):
    job = claimed(engine, enqueued(engine, **given_of(full_job(clock.now()))), now=clock.now() + timedelta(seconds=1))

    assert current(engine, job) == job
    assert job.payload["big"] == 123456789012345678901234567890


@pytest.mark.parametrize("name", OUTCOMES)
def test_an_attempts_end_is_stored_exactly_as_decided(engine, clock, name):
    job = running(engine, **{**given_of(full_job(clock.now())), "due_at": clock.now()})
    told = job.evolve(started_at=clock.now(), progress=Progress(0.5, "half ½"), cost_micros=12_345_678_901)
    clock.advance(seconds=3, microseconds=1)
    change = lifecycle.settle(told, every_outcome(clock.now())[name], clock.now(), noise=0.5)

    assert write(engine, change).ruling is Ruling.APPLIED
    assert current(engine, job) == change.after


def test_a_full_error_and_a_big_result_survive_the_round_trip(engine, clock):
    error = JobError("Ошибка", 'it "broke" \\ \n☃', "Traceback:\n" + "  at é\n" * 5000, 3, clock.now().isoformat())
    failed, done = running(engine), running(engine)
    result = '{"text":"' + "ü" * 300_000 + '"}'

    settle(engine, failed, lifecycle.Failed(error))
    settle(engine, done, Succeeded(result))

    assert current(engine, failed).error == error
    assert current(engine, done).result_json == result


def test_what_an_attempt_tells_on_the_way_is_stored(engine, clock):
    job = running(engine)
    clock.advance(seconds=5, microseconds=7)
    told = Lease(job.id, job.lease_token, clock.now(), Progress(0.25, "a quarter, ¼"), 2**53)

    engine.extend([told], lease=30.0)

    found = current(engine, job)
    assert (found.started_at, found.progress, found.cost_micros) == told[2:5]
    assert found.lease_until == clock.now() + timedelta(seconds=30)
    assert found.revision == job.revision


def test_what_an_attempt_told_before_is_kept_when_it_only_renews(engine, clock):
    job = running(engine)
    engine.extend([Lease(job.id, job.lease_token, clock.now(), Progress(0.25, "¼"), 9)], lease=30.0)
    told = current(engine, job)
    clock.advance(seconds=10)

    engine.extend([Lease(job.id, job.lease_token)], lease=30.0)

    assert current(engine, job) == told.evolve(lease_until=clock.now() + timedelta(seconds=30))


def test_an_error_of_an_earlier_attempt_stays_with_the_job_until_it_succeeds(engine, clock):
    job = running(engine, retry=Retry(max_attempts=3, base=0, jitter=0))
    settle(engine, job, lifecycle.Failed(an_error(clock.now(), "first")))

    again = claimed(engine, job)

    assert again.error == an_error(clock.now(), "first")
    settle(engine, again, Succeeded("1"))
    assert current(engine, job).error is None


def given_of(job: Job) -> dict[str, object]:
    """The fields of a request, to give to the factory."""
    return {name: value for name, value in job._asdict().items() if name not in ("id", "created_at")}
