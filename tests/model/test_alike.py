"""Many new jobs of one call, as a sequence of jobs like any other."""

from datetime import UTC, datetime, timedelta

from treadle.model import AlikeJobs, Job, new_ids
from treadle.model.alike import common_job, have_keys, ids_of, stored_alike

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LIKE = Job("", "greet", "", NOW, NOW + timedelta(minutes=1), priority=3)


def made(number: int = 3) -> AlikeJobs:
    return AlikeJobs(LIKE, new_ids(number), [f'{{"n":{n}}}' for n in range(number)])


def test_each_of_them_is_a_job_with_its_own_id_and_payload():
    jobs = made()
    assert list(jobs) == [LIKE.evolve(id=jobs.ids[n], payload_json=jobs.payloads[n]) for n in range(3)]
    assert jobs[-1] == list(jobs)[2]


def test_a_part_of_them_is_alike_too():
    jobs = made(5)
    part = jobs[1:3]
    assert isinstance(part, AlikeJobs)
    assert list(part) == list(jobs)[1:3]


def test_what_is_asked_of_them_is_answered_as_for_a_list():
    later = NOW + timedelta(hours=1)
    for jobs in (made(), AlikeJobs(LIKE.evolve(key="k"), new_ids(2), ["{}", "[]"])):
        assert ids_of(jobs) == ids_of(list(jobs))
        assert have_keys(jobs) == have_keys(list(jobs)) == (jobs.like.key is not None)
        assert list(stored_alike(jobs, later)) == stored_alike(list(jobs), later)


def test_jobs_that_differ_elsewhere_have_no_common_one():
    jobs = list(made())
    assert common_job(jobs) == jobs[0]
    assert common_job([*jobs, jobs[0].evolve(priority=4)]) is None
    assert common_job([*jobs, jobs[0].evolve(task="other")]) is None
