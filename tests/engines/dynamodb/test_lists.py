"""A page of a list looks at so many jobs and no more: no filter reads the table, and a crowd makes no page dearer."""

import pytest

from tests.engines.conformance.test_looking import FINAL, ids, pages
from tests.support.making import a_job, current, ended, enqueued, running, settle
from treadle.engines.dynamodb import lists
from treadle.engines.values import JobFilter
from treadle.model import Scope, State
from treadle.model.lifecycle import Succeeded

KEY = {"key": "ada", "key_scope": Scope.ACTIVE}
OURS = {"task": "mail", "queue": "slow", "tenant": "acme", "lane": "vip"}


def crowd(engine, first, number, **fields):
    """So many waiting jobs, the newer the higher their number, in the same partitions every time."""
    numbers = range(first, first + number)
    new = [a_job(engine.now(), id=f"fe000000-{n:04x}-7000-8000-{n:012x}", **fields) for n in numbers]
    for start in range(0, number, 500):
        engine.enqueue(new[start : start + 500])


FILTERS = {
    "newest": JobFilter(),
    "pending": JobFilter(State.PENDING),
    "pending of a tenant": JobFilter(State.PENDING, tenant="default"),
    "of a task": JobFilter(task="greet"),
    "of a queue": JobFilter(queue="default"),
    "of a lane": JobFilter(lane=""),
    "of a key": JobFilter(task="greet", key="ada"),
    "pending, of a key": JobFilter(State.PENDING, task="greet", tenant="default", key="ada"),
}


def test_a_page_costs_the_same_beside_300_and_3000_jobs(meter):
    engine = meter.engine
    holder = enqueued(engine, id="00000000-0000-7000-8000-000000000001", **KEY)
    crowd(engine, 2_700, 300)
    few = {name: meter.of(lambda where=where: engine.find(where, limit=50)) for name, where in FILTERS.items()}
    crowd(engine, 0, 2_700)
    many = {name: meter.of(lambda where=where: engine.find(where, limit=50)) for name, where in FILTERS.items()}

    assert many == few
    assert all(units.reads < 130 for units in many.values()), many
    for name in ("of a key", "pending, of a key"):
        assert many[name].reads <= 4
        assert engine.find(FILTERS[name], limit=50).jobs == [holder]


def test_a_look_for_what_few_jobs_match_ends_and_says_where(meter, monkeypatch):
    monkeypatch.setattr(lists, "MOST_LOOKED", 100)
    engine = meter.engine
    mine = enqueued(engine, id="00000000-0000-7000-8000-000000000001", **OURS)
    crowd(engine, 0, 250)

    asked = [JobFilter(**{name: value}) for name, value in OURS.items()]
    for where in (*asked, JobFilter(key="nobody's"), JobFilter(State.PENDING, tenant="acme")):
        found, looked, cursor = [], [], None
        while True:
            page = engine.find(where, limit=50, cursor=cursor)
            found, cursor = found + page.jobs, page.cursor
            looked.append(page.looked)
            if cursor is None:
                break
            assert page.back_to == mine.created_at
        assert (found, looked) == ([] if where.key else [mine], [100, 100, 51]), where


def test_of_a_queue_or_lane_no_job_is_read_whose_place_says_that_it_is_another(meter):
    engine = meter.engine
    crowd(engine, 0, 300)
    by_tenant = meter.of(lambda: engine.find(JobFilter(tenant="acme"), limit=50))

    for where in (JobFilter(queue="slow"), JobFilter(lane="vip"), JobFilter(State.SUCCEEDED)):
        assert meter.of(lambda where=where: engine.find(where, limit=50)).reads < by_tenant.reads - 295


def test_a_list_by_the_ends_ends_too(engine, monkeypatch):
    monkeypatch.setattr(lists, "MOST_LOOKED", 3)
    mine = ended(engine, State.FAILED, tenant="acme")
    others = [ended(engine, State.FAILED) for _ in range(4)]

    page = engine.find(JobFilter(State.FAILED, tenant="acme"), limit=5)

    assert (page.jobs, page.looked, page.back_to) == ([], 3, others[1].finished_at)
    assert engine.find(JobFilter(State.FAILED, tenant="acme"), limit=5, cursor=page.cursor).jobs == [mine]


def test_who_holds_a_key_comes_first_and_those_that_had_it_on_the_next_pages(engine):
    before = [ended(engine, State.SUCCEEDED, **KEY), ended(engine, State.FAILED, **KEY)]
    where = JobFilter(task="greet", tenant="default", key="ada")
    assert engine.find(where, limit=5).jobs == before[::-1]
    holder = running(engine, **KEY)

    first = engine.find(where, limit=5)
    settle(engine, holder, Succeeded())
    enqueued(engine, **KEY)
    rest = engine.find(where, limit=5, cursor=first.cursor)

    assert first.jobs == [holder]
    assert [job.id for job in rest.jobs[1:]] == ids(before[::-1])
    assert rest.cursor is None
    assert engine.find(where._replace(queue="slow"), limit=5).jobs == []
    assert engine.find(where._replace(state=State.SUCCEEDED), limit=5).jobs == [current(engine, holder), before[0]]


@pytest.mark.parametrize("limit", [1, 3])
@pytest.mark.parametrize("most", [1, 6, 1000])
def test_pages_cover_what_matches_exactly_once_however_they_are_looked_for(engine, monkeypatch, limit, most):
    monkeypatch.setattr(lists, "MOST_LOOKED", most)
    monkeypatch.setattr(lists, "FEW_DUE", 2)
    monkeypatch.setattr(lists, "DUE_FOR_ONE", 0)
    jobs = []
    for number, state in enumerate(FINAL):
        jobs += [ended(engine, state), running(engine), enqueued(engine, queue=f"other {number}")]
        jobs += [ended(engine, state, **OURS), running(engine, **OURS), enqueued(engine, lane="a#~%b")]
    jobs += [enqueued(engine, **OURS), enqueued(engine)]
    jobs = [current(engine, job) for job in jobs]
    asked = [JobFilter(), *(JobFilter(**{name: value}) for name, value in OURS.items()), JobFilter(lane="a#~%b")]

    for where in asked:
        for state in (None, State.PENDING, State.RUNNING, State.SUCCEEDED):
            wanted = [job for job in jobs if state in (None, job.state)]
            for name, value in where._asdict().items():
                wanted = [job for job in wanted if value is None or getattr(job, name) == value]
            found = pages(engine, where._replace(state=state), limit)
            assert ids(found) == sorted(ids(wanted), reverse=True), (where, state)
    for state in (State.FAILED, State.CANCELLED):
        found = pages(engine, JobFilter(state, **OURS), limit)
        assert ids(found) == [job.id for job in reversed(jobs) if job.state is state and job.lane == "vip"]


@pytest.mark.parametrize("cursor", ["", "x", ":", "~", ":x", "00000000-0000-7000-8000-00000000000g"])
def test_a_cursor_of_another_kind_is_refused(engine, cursor):
    for state in (None, State.PENDING, State.FAILED):
        with pytest.raises(ValueError, match="not a valid cursor"):
            engine.find(JobFilter(state), limit=5, cursor=cursor)
