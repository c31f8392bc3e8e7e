"""Promise 3: a claim never gives a job to two holders, and takes jobs in order."""

from collections import Counter
from datetime import timedelta

import pytest

from tests.support.making import (
    LEASE,
    a_job,
    claim,
    claimed,
    crashed,
    current,
    enqueued,
    race,
    running,
    settle,
    several,
    traces,
)
from treadle.engines.values import Claim, JobFilter, Lease, Renewal, Ruling
from treadle.model import JobError, Progress, Retry, State, lifecycle, new_id
from treadle.model.lifecycle import Failed, Released, Snoozed, Succeeded


@pytest.mark.covers("000-AC-26.b", "002-Q3.a", "002-Q3.b", "000-AC-09.e")
def test_a_claim_hands_out_the_job_as_running_under_the_callers_token(engine, clock):
    job = enqueued(engine)
    clock.advance(seconds=7)

    turn = engine.turn([], Claim(token="t-1", worker="w-7", limit=1, lease=300.0))

    assert turn.jobs == [
        job.evolve(
            state=State.RUNNING,
            attempt=1,
            claimed_at=clock.now(),
            worker="w-7",
            lease_until=clock.now() + timedelta(seconds=300),
            lease_token="t-1",
            revision=1,
        )
    ]
    assert turn.verdicts == []
    assert turn.now == clock.now()
    assert current(engine, job) == turn.jobs[0]


def test_two_claims_never_share_a_job(engine):
    jobs = {enqueued(engine).id for _ in range(5)}

    first, second, third = claim(engine, 3), claim(engine, 3), claim(engine, 3)

    assert [len(first), len(second), len(third)] == [3, 2, 0]
    assert {job.id for job in first + second} == jobs


@pytest.mark.covers("004-T03", "001-R22.c", "000-AC-09.c")
def test_claims_take_priority_first_then_the_earliest_due_then_the_oldest_id(engine, clock):
    now = clock.now()
    ids = sorted(new_id() for _ in range(3))
    jobs = [
        a_job(now, priority=-5, due_at=now + timedelta(seconds=1)),
        a_job(now, id=ids[2], priority=0, due_at=now + timedelta(seconds=5)),
        a_job(now, id=ids[0], priority=0, due_at=now + timedelta(seconds=5)),
        a_job(now, id=ids[1], priority=0, due_at=now + timedelta(seconds=5)),
        a_job(now, priority=0, due_at=now + timedelta(seconds=4)),
        a_job(now, priority=9, due_at=now + timedelta(seconds=9)),
        a_job(now, priority=2**31 - 1, due_at=now + timedelta(seconds=9)),
        a_job(now, priority=-(2**31), due_at=now + timedelta(seconds=1)),
    ]
    engine.enqueue(jobs)
    clock.advance(seconds=10)
    expected = [jobs[place].id for place in (6, 5, 4, 2, 3, 1, 0, 7)]

    one_by_one = [claim(engine, 1)[0].id for _ in range(3)]
    together = [job.id for job in claim(engine, 10)]

    assert one_by_one + together == expected


@pytest.mark.covers("001-R22.c", "004-T03")
def test_jobs_made_in_one_instant_are_claimed_in_the_order_of_their_making(engine):
    jobs = [enqueued(engine) for _ in range(20)]

    assert [claim(engine, 1)[0].id for _ in jobs] == [job.id for job in jobs]


def test_a_claim_takes_no_more_than_its_limit(engine):
    for _ in range(4):
        enqueued(engine)

    assert len(claim(engine, 3)) == 3
    assert claim(engine, 0) == []
    assert engine.count(JobFilter()) == {State.RUNNING: 3, State.PENDING: 1}


def test_a_claim_that_goes_on_behind_jobs_it_may_not_take_takes_no_more_than_its_limit(engine):
    first = enqueued(engine, priority=9)
    enqueued(engine, priority=5, task="another")
    rest = [enqueued(engine) for _ in range(4)]

    got = claim(engine, 2, tasks=["greet"])

    assert [job.id for job in got] == [first.id, rest[0].id]
    assert engine.count(JobFilter(state=State.RUNNING)) == {State.RUNNING: 2}


@pytest.mark.covers("004-T09", "000-AC-09.a")
def test_a_job_is_not_claimed_before_its_time_and_is_claimed_at_it(engine, clock):
    job = enqueued(engine, due_at=clock.now() + timedelta(minutes=5))

    assert claim(engine) == []
    clock.advance(minutes=5, microseconds=-1)
    assert claim(engine) == []
    clock.advance(microseconds=1)
    assert [got.id for got in claim(engine)] == [job.id]


@pytest.mark.covers("000-AC-09.b")
def test_a_claim_for_some_tasks_leaves_the_others(engine):
    mail, sync, report = (enqueued(engine, task=task) for task in ("mail", "sync", "report"))

    assert {job.id for job in claim(engine, tasks=["mail", "report", "unheard of"])} == {mail.id, report.id}
    assert claim(engine, tasks=[]) == []
    assert [job.id for job in claim(engine)] == [sync.id]


def test_a_claim_for_some_tasks_takes_them_from_behind_others_of_higher_priority(engine):
    for _ in range(5):
        enqueued(engine, task="other", priority=10)
    wanted = enqueued(engine, task="mine")

    assert [job.id for job in claim(engine, 3, tasks=["mine"])] == [wanted.id]


def test_a_claim_for_some_queues_leaves_the_others(engine):
    mail, slow, other = (enqueued(engine, queue=queue) for queue in ("mail", "slow", "other"))

    assert claim(engine) == []  # nothing is in "default"
    assert {job.id for job in claim(engine, queues=["mail", "slow", "empty"])} == {mail.id, slow.id}
    assert [job.id for job in claim(engine, queues=["other"])] == [other.id]


def test_a_claim_for_some_lanes_leaves_the_others(engine):
    plain, acme, umbrella = (enqueued(engine, lane=lane) for lane in ("", "acme", "umbrella"))

    assert [job.id for job in claim(engine, lanes=["acme", "nobody"])] == [acme.id]
    assert claim(engine, lanes=[]) == []
    assert [job.id for job in claim(engine, lanes=[""])] == [plain.id]
    assert [job.id for job in claim(engine)] == [umbrella.id]


def test_a_full_lane_does_not_keep_a_big_claim_from_the_others(engine):
    for lane, size in {"full": 200, "small": 3, "tiny": 1}.items():
        for _ in range(size):
            enqueued(engine, lane=lane)

    lanes = [job.lane for job in claim(engine, 30)]

    assert {lane: lanes.count(lane) for lane in set(lanes)} == {"full": 26, "small": 3, "tiny": 1}


def test_lanes_take_turns_when_jobs_are_claimed_one_by_one(engine):
    for lane in ("a", "b", "c"):
        for _ in range(10):
            enqueued(engine, lane=lane, priority=5 if lane == "a" else 0)

    lanes = [claim(engine, 1)[0].lane for _ in range(12)]

    assert {lane: lanes.count(lane) for lane in "abc"} == {"a": 4, "b": 4, "c": 4}


@pytest.mark.parametrize("number", [2, 9])
def test_lanes_and_jobs_without_one_take_turns_when_jobs_are_claimed_one_by_one(engine, number):
    lanes = ["", *(f"lane{n}" for n in range(number))]
    engine.enqueue(
        [a_job(engine.now(), lane=lane, priority=0 if lane else 5) for lane in lanes for _ in range(6 * number)]
    )

    served = Counter(claim(engine, 1)[0].lane for _ in range(6 * number))

    assert min(served[lane] for lane in lanes) >= 2, f"each lane should have its turn: {served}"


def test_order_holds_within_each_lane(engine):
    jobs = [enqueued(engine, lane=lane, priority=n % 3) for n in range(12) for lane in ("a", "b")]

    got = claim(engine, 24)

    for lane in ("a", "b"):
        wanted = sorted((job for job in jobs if job.lane == lane), key=lambda job: (-job.priority, job.id))
        assert [job.id for job in got if job.lane == lane] == [job.id for job in wanted]


@pytest.mark.covers("000-R05.a")
def test_an_expired_job_is_not_claimed(engine, clock):
    fresh = enqueued(engine, expires_at=clock.now() + timedelta(minutes=5, microseconds=1))
    enqueued(engine, expires_at=clock.now() + timedelta(minutes=5))
    clock.advance(minutes=5)

    assert [job.id for job in claim(engine)] == [fresh.id]


def test_a_job_whose_time_passed_while_it_ran_is_not_claimed_for_its_retry(engine, clock):
    job = running(engine, expires_at=clock.now() + timedelta(seconds=10))
    clock.advance(seconds=10)

    settle(engine, job, Released())

    assert claim(engine) == []
    assert [found.id for found in engine.expired(limit=10)] == [job.id]


@pytest.mark.covers("003-S08.b", "003-S07.c")
@pytest.mark.parametrize("state", [state for state in State if state.final])
def test_a_finished_job_is_never_claimed(engine, clock, state):
    job = enqueued(engine)
    if state is State.CANCELLED:
        engine.turn([lifecycle.cancel(job, clock.now(), actor="ann")])
    elif state is State.SUCCEEDED:
        settle(engine, claimed(engine, job), Succeeded())
    else:
        error = JobError("E", "m", "", 1, "")
        settle(engine, claimed(engine, job), lifecycle.FailedForGood(lifecycle.Reason.PERMANENT, error))
    clock.advance(days=400)

    assert current(engine, job).state is state
    assert claim(engine) == []


def test_attempt_counts_claims_and_never_falls(engine, clock):
    job = running(engine, retry=Retry(max_attempts=9, base=0, jitter=0))
    seen = [job.attempt]

    for outcome in (Snoozed(0), Released(), Failed(JobError("E", "m", "", 1, ""))):
        settle(engine, job, outcome)
        assert current(engine, job).attempt == seen[-1]
        job = claimed(engine, job)
        seen.append(job.attempt)
    crashed(engine, clock, job)
    seen.append(claimed(engine, job).attempt)

    assert seen == [1, 2, 3, 4, 5]


def test_a_claim_clears_what_the_previous_attempt_told(engine, clock):
    job = running(engine)
    engine.extend([Lease(job.id, job.lease_token, clock.now(), Progress(0.5, "half"), 77)], lease=LEASE)
    settle(engine, current(engine, job), Released())
    clock.advance(seconds=5)

    again = claimed(engine, job, worker="w2")

    assert (again.started_at, again.progress) == (None, None)
    assert (again.claimed_at, again.worker) == (clock.now(), "w2")
    assert again.lease_token != job.lease_token
    assert again.cost_micros == 77  # money spent stays spent
    assert current(engine, job) == again


def test_a_repeated_turn_returns_the_same_jobs_and_claims_no_more(engine, clock):
    for _ in range(5):
        enqueued(engine)
    wish = Claim(token=new_id(), worker="w1", limit=3, lease=LEASE)
    first = engine.turn([], wish).jobs
    before = traces(engine)
    clock.advance(seconds=3)

    again = engine.turn([], wish).jobs

    assert again == first
    assert len(first) == 3
    assert traces(engine) == before


def test_a_repeated_turn_whose_changes_were_applied_gives_the_same_answer(engine, clock):
    held = [running(engine), running(engine)]
    for _ in range(5):
        enqueued(engine)
    changes = [
        lifecycle.settle(held[0], Succeeded("1"), clock.now()),
        lifecycle.settle(held[1], Snoozed(60), clock.now()),
    ]
    wish = Claim(token=new_id(), worker="w1", limit=2, lease=LEASE)
    first = engine.turn(changes, wish)
    before = traces(engine)

    again = engine.turn(changes, wish)

    assert [verdict.ruling for verdict in first.verdicts] == [Ruling.APPLIED] * 2
    assert [verdict.ruling for verdict in again.verdicts] == [Ruling.ALREADY] * 2
    assert again.jobs == first.jobs
    assert len(first.jobs) == 2
    assert traces(engine) == before


def test_a_repeated_turn_returns_jobs_in_order_too(engine):
    for priority in (1, 3, 2, 5, 4):
        enqueued(engine, priority=priority)
    wish = Claim(token=new_id(), worker="w1", limit=5, lease=LEASE)

    first, again = engine.turn([], wish).jobs, engine.turn([], wish).jobs

    assert [job.priority for job in first] == [5, 4, 3, 2, 1]
    assert again == first


def test_a_turn_claims_what_its_own_changes_made_due(engine, clock):
    job = running(engine)

    turn = engine.turn(
        [lifecycle.settle(job, Released(), clock.now())],
        Claim(token=new_id(), worker="w2", limit=1, lease=LEASE),
    )

    assert [got.id for got in turn.jobs] == [job.id]
    assert turn.jobs[0].attempt == 2


def test_a_turn_with_nothing_to_do_tells_the_time_of_the_store(engine, clock):
    turn = engine.turn([])

    assert (turn.verdicts, turn.jobs, turn.now) == ([], [], clock.now())


@pytest.mark.covers("003-S12.a")
def test_a_lease_that_is_extended_in_time_keeps_the_job_from_others(engine, clock):
    job = running(engine)

    for _ in range(5):
        clock.advance(seconds=LEASE - 1)
        [held] = engine.extend([Lease(job.id, job.lease_token)], lease=LEASE)
        assert held == (job.id, Renewal.RENEWED, False)
        assert engine.expired(limit=10) == []
        assert claim(engine) == []

    assert settle(engine, job, Succeeded()).ruling is Ruling.APPLIED


@pytest.mark.covers("001-R22.a", "000-AC-29", "003-S09.a", "000-R17.a", "002-T1.e")
def test_of_eight_claimers_racing_for_one_job_one_gets_it_and_the_others_nothing(make_engine):
    engines = several(make_engine, 8)

    for _ in range(10):
        job = enqueued(engines[0])
        got = race(8, lambda place: claim(engines[place], 1, worker=f"w{place}"))

        assert sorted(map(len, got)) == [0] * 7 + [1]
        [winner] = [jobs[0] for jobs in got if jobs]
        assert current(engines[0], job) == winner


@pytest.mark.covers("000-R17.a", "000-R15.c", "002-Q3.d")
def test_eight_claimers_racing_for_two_hundred_jobs_never_get_the_same_one(make_engine, clock):
    engines = several(make_engine, 8)
    jobs = [a_job(clock.now(), lane="ab"[number % 2]) for number in range(200)]
    engines[0].enqueue(jobs)

    def claim_until_empty(place):
        got = []
        while batch := claim(engines[place], 7, worker=f"w{place}"):
            got += batch
        return got

    got = [job for batch in race(8, claim_until_empty) for job in batch]

    assert sorted(job.id for job in got) == sorted(job.id for job in jobs)
    assert {job.attempt for job in got} == {1}


def test_threads_that_share_one_engine_never_get_the_same_job(engine, clock):
    engine.enqueue([a_job(clock.now()) for _ in range(60)])

    got = race(6, lambda _: [job for _ in range(10) for job in claim(engine, 1)])

    ids = [job.id for batch in got for job in batch]
    assert len(ids) == len(set(ids)) == 60


# ------------------------------------------------------------------------------------ tasks and versions


def test_a_job_of_a_newer_version_is_left_for_a_worker_that_knows_it(engine):
    newer, older = enqueued(engine, task_version=2), enqueued(engine, task_version=1)

    assert [job.id for job in claim(engine, versions={"greet": 1})] == [older.id]
    assert claim(engine, versions={"greet": 1}) == []
    assert current(engine, newer).attempt == 0
    assert [job.id for job in claim(engine, versions={"greet": 2})] == [newer.id]


def test_versions_bind_only_the_tasks_they_name(engine):
    job = enqueued(engine, task="render", task_version=7)

    assert [got.id for got in claim(engine, versions={"greet": 1})] == [job.id]


def test_a_job_that_a_stranger_met_keeps_its_place_in_the_order(engine):
    met = [enqueued(engine, task="render", priority=priority) for priority in (5, 1)]
    assert claim(engine, tasks=["greet"]) == []
    fresh = [enqueued(engine, priority=priority) for priority in (9, 3, 1)]

    got = claim(engine, 5, tasks=["greet", "render"])

    assert [job.id for job in got] == [fresh[0].id, met[0].id, fresh[1].id, met[1].id, fresh[2].id]


def test_a_job_that_a_stranger_met_stays_in_its_lane(engine):
    job = enqueued(engine, task="render", lane="a")
    assert claim(engine, tasks=["greet"]) == []

    assert claim(engine, lanes=["b"]) == []
    assert [got.id for got in claim(engine, lanes=["a"])] == [job.id]


def test_a_job_that_a_stranger_met_is_found_when_it_comes_back(engine, clock):
    enqueued(engine, task="render")
    assert claim(engine, tasks=["greet"]) == []
    [job] = claim(engine, tasks=["render"])
    settle(engine, job, Released())

    assert [got.id for got in claim(engine)] == [job.id]


def test_jobs_behind_thousands_of_strangers_are_claimed_at_once(engine, clock):
    now = clock.now()
    engine.enqueue([a_job(now, task="render", priority=1) for _ in range(2_500)])
    mine = enqueued(engine)

    assert [job.id for job in claim(engine, 5, tasks=["greet"])] == [mine.id]
    assert len(claim(engine, 10, tasks=["render"])) == 10


def test_a_repeated_turn_that_had_room_for_more_claims_no_more_either(engine):
    first = [enqueued(engine).id for _ in range(2)]
    wish = Claim(token=new_id(), worker="w1", limit=5, lease=LEASE)
    assert [job.id for job in engine.turn([], wish).jobs] == first
    late = enqueued(engine)

    assert [job.id for job in engine.turn([], wish).jobs] == first
    assert [job.id for job in claim(engine)] == [late.id]


def test_a_job_that_a_stranger_met_keeps_its_place_when_jobs_are_claimed_one_by_one(engine):
    met = [enqueued(engine, task="render", priority=priority) for priority in (5, 1)]
    assert claim(engine, tasks=["greet"]) == []
    fresh = [enqueued(engine, priority=priority) for priority in (9, 3, 1)]

    got = [claim(engine, 1, tasks=["greet", "render"])[0].id for _ in range(5)]

    assert got == [fresh[0].id, met[0].id, fresh[1].id, met[1].id, fresh[2].id]


def test_a_job_that_a_stranger_met_is_not_claimed_past_its_expiry(engine, clock):
    job = enqueued(engine, task="render", expires_at=clock.now() + timedelta(seconds=10))
    assert claim(engine, tasks=["greet"]) == []
    clock.advance(seconds=10)

    assert claim(engine, tasks=["render"]) == []
    assert [found.id for found in engine.expired(limit=10)] == [job.id]


def test_lanes_take_turns_within_one_claim(engine):
    for lane in "abc":
        for _ in range(5):
            enqueued(engine, lane=lane)

    shares = Counter(job.lane for job in claim(engine, 4))

    assert sorted(shares.values()) == [1, 1, 2]
