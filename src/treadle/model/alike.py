"""Many new jobs of one call: what they have in common is kept once."""

from collections.abc import Sequence
from datetime import datetime
from typing import overload

from treadle.model.job import Job


class AlikeJobs(Sequence[Job]):
    """New jobs that differ in id and payload alone; each is made when somebody looks at it."""

    def __init__(self, like: Job, ids: Sequence[str], payloads: Sequence[str]) -> None:
        """`like` is any of them: its id and its payload do not count."""
        self.like, self.ids, self.payloads = like, ids, payloads

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, place: int) -> Job: ...
    @overload
    def __getitem__(self, place: slice) -> "AlikeJobs": ...
    def __getitem__(self, place: int | slice) -> "Job | AlikeJobs":
        if isinstance(place, slice):
            return AlikeJobs(self.like, self.ids[place], self.payloads[place])
        return Job._make((self.ids[place], self.like.task, self.payloads[place], *self.like[_REST:]))


_REST = Job._fields.index("payload_json") + 1


def stored_alike(jobs: Sequence[Job], now: datetime) -> Sequence[Job]:
    """These jobs as they are stored now."""
    if isinstance(jobs, AlikeJobs):
        return AlikeJobs(jobs.like.stored_at(now), jobs.ids, jobs.payloads)
    return [job.stored_at(now) for job in jobs]


def with_trace(jobs: Sequence[Job], trace: str) -> Sequence[Job]:
    """These jobs; those that belong to no trace belong to this one."""
    if isinstance(jobs, AlikeJobs):
        return jobs if jobs.like.trace else AlikeJobs(jobs.like.evolve(trace=trace), jobs.ids, jobs.payloads)
    return [job if job.trace else job.evolve(trace=trace) for job in jobs]


def ids_of(jobs: Sequence[Job]) -> Sequence[str]:
    """The ids of these jobs."""
    return jobs.ids if isinstance(jobs, AlikeJobs) else [job.id for job in jobs]


def have_keys(jobs: Sequence[Job]) -> bool:
    """Whether one of these jobs has a key."""
    return any(job.key is not None for job in ([jobs.like] if isinstance(jobs, AlikeJobs) else jobs))


def common_job(jobs: Sequence[Job]) -> Job | None:
    """One of these jobs, if they differ in id and payload alone."""
    if isinstance(jobs, AlikeJobs):
        return jobs.like
    first, common = jobs[0], jobs[0][_COMMON]
    return first if all(job.task == first.task and job[_COMMON] == common for job in jobs) else None


_COMMON = slice(_REST, Job._fields.index("state"))  # a new job says nothing behind that
