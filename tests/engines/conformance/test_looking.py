"""Looking and tidying: get, find, count, and what prune may delete."""

from datetime import timedelta

import pytest

from tests.support.making import a_job, an_error, claim, claimed, current, ended, enqueued, running, settle, write
from tests.support.marks import dynamodb_only, sql_stores
from treadle.engines.values import JobFilter, Retention
from treadle.model import Reason, Scope, State, lifecycle, new_id
from treadle.model.lifecycle import FailedForGood, Succeeded

FINAL = [state for state in State if state.final]
WEEK = timedelta(days=7)


def ids(jobs):
    return [job.id for job in jobs]


def pages(engine, where, limit):
    """Every job of a search, page by page."""
    found, cursor = [], None
    while True:
        page = engine.find(where, limit=limit, cursor=cursor)
        assert len(page.jobs) <= limit
        found += page.jobs
        if page.cursor is None:
            return found
        cursor = page.cursor
        assert len(found) < 10_000


def one_of_each(engine):
    """A job of every state, oldest first."""
    return [
        *(ended(engine, state) for state in FINAL),
        running(engine),
        enqueued(engine),
    ]


# --------------------------------------------------------------------------------------------------- get


def test_get_answers_in_the_order_asked_with_none_for_the_unknown(engine):
    jobs = one_of_each(engine)
    stranger = new_id()

    found = engine.get([jobs[4].id, stranger, jobs[0].id, jobs[3].id, jobs[4].id])

    assert found == [jobs[4], None, jobs[0], jobs[3], jobs[4]]
    assert engine.get([]) == []


def test_an_id_of_another_kind_is_simply_unknown(engine):
    enqueued(engine)

    assert engine.get(["", "x", "' or 1=1 --", "ü"]) == [None] * 4


# -------------------------------------------------------------------------------------------------- find


def test_find_lists_the_newest_first_whatever_their_state(engine):
    jobs = one_of_each(engine)

    page = engine.find(JobFilter(), limit=10)

    assert ids(page.jobs) == ids(reversed(jobs))
    assert page.jobs == [current(engine, job) for job in reversed(jobs)]
    assert page.cursor is None


def test_find_in_an_empty_store_finds_nothing(engine):
    for where in (JobFilter(), JobFilter(state=State.PENDING), JobFilter(state=State.FAILED)):
        assert engine.find(where, limit=10) == ([], None)
        assert engine.count(where) == {}


@pytest.mark.parametrize("state", State)
def test_find_and_count_by_state(engine, state):
    jobs = {job.state: job for job in one_of_each(engine)}

    assert engine.find(JobFilter(state=state), limit=10).jobs == [jobs[state]]
    assert engine.count(JobFilter(state=state)) == {state: 1}


@pytest.mark.parametrize("field", ["task", "queue", "tenant", "key", "lane"])
@pytest.mark.parametrize("state", [State.PENDING, State.SUCCEEDED])
def test_find_and_count_by_a_field(engine, field, state):
    def make(value):
        fields = {field: value, "key_scope": Scope.EVER} if field == "key" else {field: value}
        return enqueued(engine, **fields) if state is State.PENDING else ended(engine, state, **fields)

    mine, _ = make("mine"), make("other")

    for where in (JobFilter(**{field: "mine"}), JobFilter(state=state, **{field: "mine"})):
        assert engine.find(where, limit=10).jobs == [mine]
        assert engine.count(where) == {state: 1}
    assert engine.find(JobFilter(**{field: "nobody's"}), limit=10).jobs == []
    assert engine.count(JobFilter(**{field: "nobody's"})) == {}


def test_jobs_of_no_lane_are_found_as_such(engine):
    enqueued(engine, lane="mine")
    without, done = enqueued(engine), ended(engine, State.FAILED, queue="other")

    assert engine.find(JobFilter(lane=""), limit=10).jobs == [done, without]
    assert engine.count(JobFilter(lane="")) == {State.PENDING: 1, State.FAILED: 1}


def test_a_count_with_a_limit_is_exact_up_to_it_and_an_estimate_beyond(engine):
    for _ in range(3):
        ended(engine, State.SUCCEEDED)
    ended(engine, State.FAILED, task="mail")
    enqueued(engine, queue="other")

    within = engine.count(JobFilter(), limit=5)
    assert within == {State.SUCCEEDED: 3, State.FAILED: 1, State.PENDING: 1} == engine.count(JobFilter())
    assert all(count.exact for count in (*within.values(), *engine.count(JobFilter()).values()))
    assert engine.count(JobFilter(task="mail", state=State.FAILED), limit=5) == {State.FAILED: 1}
    assert engine.count(JobFilter(task="nobody's"), limit=5) == {}

    beyond = engine.count(JobFilter(state=State.SUCCEEDED), limit=2)[State.SUCCEEDED]
    assert (beyond >= 1, beyond.exact) == (True, False)


@sql_stores
def test_a_count_with_a_limit_is_exact_beside_any_number_of_others(engine):
    ended(engine, State.SUCCEEDED, tenant="small", task="mail", queue="slow", lane="left")
    for _ in range(3):
        ended(engine, State.SUCCEEDED, tenant="large")

    for where in ({"tenant": "small"}, {"task": "mail"}, {"queue": "slow"}, {"lane": "left"}):
        found = engine.count(JobFilter(**where), limit=2)
        assert (found, found[State.SUCCEEDED].exact) == ({State.SUCCEEDED: 1}, True)
        assert engine.count(JobFilter(**dict.fromkeys(where, "nobody's")), limit=2) == {}
    large = engine.count(JobFilter(tenant="large"), limit=2)[State.SUCCEEDED]
    assert (large, large.exact) == (2, False)  # of everybody's statistics a tenant hears nothing


@dynamodb_only
def test_a_count_with_a_limit_reads_no_more_jobs_where_a_read_is_paid_for(engine):
    for _ in range(3):
        ended(engine, State.SUCCEEDED)

    hidden = engine.count(JobFilter(task="nobody's"), limit=2)[State.SUCCEEDED]
    assert (hidden, hidden.exact) == (0, False)  # none was seen, and there were more to see


@pytest.mark.parametrize("state", [State.PENDING, State.FAILED])
def test_whoever_reads_no_payloads_is_not_given_large_ones(engine, state):
    text = '"' + "x" * 500_000 + '"'
    job = ended(engine, state, payload_json=text) if state.final else enqueued(engine, payload_json=text)

    [bare] = engine.find(JobFilter(state), limit=10, bare=True).jobs

    assert len(bare.payload_json) < 10
    assert bare._replace(payload_json=text) == job


def test_cancelled_jobs_are_found_and_counted_by_whether_they_expired(engine):
    late = enqueued(engine).id
    write(engine, lifecycle.expire(current(engine, a_job(engine.now(), id=late)), engine.now(), actor="test"))
    stopped = [ended(engine, State.CANCELLED).id for _ in range(2)]
    enqueued(engine)

    for expired, wanted in ((True, {late}), (False, {*stopped}), (None, {late, *stopped})):
        where = JobFilter(State.CANCELLED, tenant="default", expired=expired)
        assert {job.id for job in pages(engine, where, 1)} == wanted
        for limit in (None, 10):
            counted = engine.count(where, limit=limit)
            assert counted == {State.CANCELLED: len(wanted)}
            assert counted[State.CANCELLED].exact


def test_find_by_several_fields_wants_all_of_them(engine):
    wanted = enqueued(engine, task="mail", queue="q", tenant="acme")
    for other in ({"task": "x"}, {"queue": "x"}, {"tenant": "x"}):
        enqueued(engine, **{"task": "mail", "queue": "q", "tenant": "acme", **other})

    where = JobFilter(task="mail", queue="q", tenant="acme", state=State.PENDING)

    assert engine.find(where, limit=10).jobs == [wanted]
    assert engine.count(where) == {State.PENDING: 1}


def test_a_filter_is_compared_whole_and_as_it_is(engine):
    enqueued(engine, task="mail.send")

    for near in ("mail", "MAIL.SEND", "mail%", "mail_send", "' or ''='", ""):
        assert engine.find(JobFilter(task=near), limit=10).jobs == [], near


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 12, 13, 100])
def test_paging_covers_every_job_exactly_once(engine, limit):
    jobs = []
    for _ in range(4):  # waiting and finished ones by turns
        jobs += [ended(engine, State.SUCCEEDED), ended(engine, State.CANCELLED), enqueued(engine, queue="other")]

    found = pages(engine, JobFilter(), limit)

    assert ids(found) == ids(reversed(jobs))


@pytest.mark.parametrize("limit", [1, 2, 5, 10])
def test_paging_with_a_filter_covers_what_matches_exactly_once(engine, limit):
    wanted = []
    for _ in range(5):
        wanted += [ended(engine, State.FAILED, task="mail"), enqueued(engine, task="mail", queue="other")]
        enqueued(engine, task="sync", queue="other")

    assert ids(pages(engine, JobFilter(task="mail"), limit)) == ids(reversed(wanted))


@pytest.mark.parametrize("limit", [1, 2, 3, 10])
def test_failed_jobs_come_by_the_time_they_ended_latest_first(engine, clock, limit):
    held = claim_all(engine, [enqueued(engine) for _ in range(6)])
    order = [3, 0, 5, 1, 4, 2]
    for number in order:
        settle(engine, held[number], FailedForGood(Reason.PERMANENT, an_error(clock.now())))
        clock.advance(seconds=1)

    found = pages(engine, JobFilter(state=State.FAILED), limit)

    assert ids(found) == [held[number].id for number in reversed(order)]


@pytest.mark.parametrize("limit", [1, 2, 3, 10])
def test_jobs_that_succeeded_come_newest_first_whenever_they_ended(engine, clock, limit):
    held = claim_all(engine, [enqueued(engine) for _ in range(6)])
    for number in [3, 0, 5, 1, 4, 2]:
        settle(engine, held[number], Succeeded())
        clock.advance(seconds=1)

    found = pages(engine, JobFilter(state=State.SUCCEEDED), limit)

    assert ids(found) == ids(reversed(held))


@pytest.mark.parametrize("limit", [1, 2, 4, 10])
def test_jobs_that_finished_in_one_instant_are_paged_exactly_once(engine, clock, limit):
    held = claim_all(engine, [enqueued(engine) for _ in range(9)])
    outcome = FailedForGood(Reason.PERMANENT, an_error(clock.now()))
    engine.turn([lifecycle.settle(job, outcome, clock.now()) for job in held])

    found = pages(engine, JobFilter(state=State.FAILED), limit)

    assert ids(found) == sorted(ids(held), reverse=True)


def test_paging_goes_on_where_it_was_though_newer_jobs_arrive(engine):
    old = [enqueued(engine) for _ in range(4)]
    first = engine.find(JobFilter(), limit=2)
    newer = [enqueued(engine) for _ in range(3)]

    second = engine.find(JobFilter(), limit=10, cursor=first.cursor)

    assert ids(first.jobs + second.jobs) == ids(reversed(old))
    assert ids(engine.find(JobFilter(), limit=10).jobs) == ids(reversed(old + newer))


def test_a_job_that_finishes_between_two_pages_is_neither_missed_nor_shown_twice(engine):
    jobs = claim_all(engine, [enqueued(engine) for _ in range(6)])
    first = engine.find(JobFilter(), limit=3)
    for job in jobs:
        settle(engine, job, Succeeded())

    second = engine.find(JobFilter(), limit=10, cursor=first.cursor)

    assert ids(first.jobs + second.jobs) == ids(reversed(jobs))


# ------------------------------------------------------------------------------------------------- count


def test_count_tells_each_state_that_has_jobs(engine, clock):
    for state, number in {State.SUCCEEDED: 3, State.FAILED: 2, State.CANCELLED: 1}.items():
        for _ in range(number):
            ended(engine, state)
    running(engine)
    for _ in range(4):
        enqueued(engine)

    assert engine.count(JobFilter()) == {
        State.SUCCEEDED: 3, State.FAILED: 2, State.CANCELLED: 1, State.RUNNING: 1, State.PENDING: 4,
    }  # fmt: skip


# ------------------------------------------------------------------------------------------------- prune


@pytest.mark.covers("001-R31.a")
def test_prune_deletes_what_finished_longer_ago_than_its_state_is_kept(engine, clock):
    old = [ended(engine, State.SUCCEEDED), ended(engine, State.FAILED)]
    clock.advance(hours=1)
    young = [ended(engine, State.SUCCEEDED), ended(engine, State.FAILED)]
    clock.advance(days=7, minutes=-30)

    deleted = engine.prune(Retention({State.SUCCEEDED: WEEK, State.FAILED: WEEK}), limit=100)

    assert deleted == 2
    assert engine.get(ids(old)) == [None, None]
    assert engine.get(ids(young)) == young
    assert engine.find(JobFilter(), limit=10).jobs == list(reversed(young))


def test_prune_keeps_each_state_for_its_own_time_and_unnamed_ones_for_ever(engine, clock):
    jobs = {state: ended(engine, state) for state in FINAL}
    clock.advance(days=10)

    assert engine.prune(Retention({State.SUCCEEDED: WEEK, State.FAILED: timedelta(days=30)}), limit=100) == 1
    assert engine.get([job.id for job in jobs.values()]) == [None, jobs[State.FAILED], jobs[State.CANCELLED]]
    clock.advance(days=21)
    assert engine.prune(Retention({State.SUCCEEDED: WEEK, State.FAILED: timedelta(days=30)}), limit=100) == 1
    assert engine.prune(Retention({}), limit=100) == 0
    assert engine.count(JobFilter()) == {State.CANCELLED: 1}


def test_prune_counts_from_the_end_of_a_job_not_from_its_making(engine, clock):
    job = enqueued(engine)
    clock.advance(days=30)
    settle(engine, claimed(engine, job), Succeeded())

    assert engine.prune(Retention({State.SUCCEEDED: WEEK}), limit=100) == 0


def test_prune_deletes_no_more_than_its_limit_and_the_oldest_first(engine, clock):
    jobs = []
    for _ in range(5):
        jobs += [ended(engine, State.SUCCEEDED), ended(engine, State.FAILED)]
        clock.advance(seconds=1)
    clock.advance(days=8)
    keep = Retention({State.SUCCEEDED: WEEK, State.FAILED: WEEK})

    deleted = [engine.prune(keep, limit=3) for _ in range(5)]

    assert deleted == [3, 3, 3, 1, 0]
    assert engine.count(JobFilter()) == {}


def test_prune_takes_the_oldest_of_a_state_first(engine, clock):
    jobs = []
    for _ in range(4):
        jobs.append(ended(engine, State.SUCCEEDED))
        clock.advance(seconds=1)
    clock.advance(days=8)

    engine.prune(Retention({State.SUCCEEDED: WEEK}), limit=2)

    assert engine.get(ids(jobs)) == [None, None, *jobs[2:]]


@pytest.mark.covers("001-R31.b")
def test_prune_never_deletes_a_pending_or_running_job(engine, clock):
    held, waiting, later = running(engine), enqueued(engine), enqueued(engine, due_at=clock.now() + timedelta(days=1))
    clock.advance(days=10_000)

    deleted = engine.prune(Retention(dict.fromkeys(State, timedelta(0))), limit=100)

    assert deleted == 0
    assert engine.get(ids([held, waiting, later])) == [held, waiting, later]


def test_prune_leaves_the_trail_which_has_an_end_of_its_own(engine, clock):
    job = ended(engine, State.FAILED)
    trail = engine.events(job.id)
    clock.advance(days=8)

    engine.prune(Retention({State.FAILED: WEEK}), limit=100)

    assert trail
    assert engine.events(job.id) == trail


def test_a_job_that_was_retried_by_an_operator_is_not_pruned(engine, clock):
    job = ended(engine, State.FAILED)
    clock.advance(days=8)
    write(engine, lifecycle.retry(job, clock.now(), actor="ann"))

    assert engine.prune(Retention({State.FAILED: WEEK}), limit=100) == 0
    settle(engine, claimed(engine, job), FailedForGood(Reason.PERMANENT, an_error(clock.now())))
    assert engine.prune(Retention({State.FAILED: WEEK}), limit=100) == 0


def test_the_id_of_a_pruned_job_is_free_again(engine, clock):
    job = ended(engine, State.SUCCEEDED)
    clock.advance(days=8)
    engine.prune(Retention({State.SUCCEEDED: WEEK}), limit=100)

    [receipt] = engine.enqueue([a_job(clock.now(), id=job.id)])

    assert receipt.created


def claim_all(engine, jobs):
    """These jobs, claimed, in the order given."""
    got = {job.id: job for job in claim(engine, len(jobs))}
    return [got[job.id] for job in jobs]


@pytest.mark.parametrize("state", [None, State.FAILED])
@pytest.mark.parametrize("cursor", ["garbage", "1:garbage", "x:y:z", "12345"])
def test_a_cursor_that_is_none_is_a_mistake_of_the_caller(engine, state, cursor):
    with pytest.raises((ValueError, IndexError, OverflowError)):
        engine.find(JobFilter(state=state), limit=10, cursor=cursor)
