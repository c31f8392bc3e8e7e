"""What a test expects to be enqueued, and what there is instead."""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from treadle.app.operations import Operations
from treadle.app.treadle import Treadle
from treadle.errors import InvalidJob
from treadle.model import Job, State
from treadle.tasks.task import Task, name_of

SHOWN = 5  # jobs in a message
PAGE = 500
COMPARED = (*Job._fields, "payload", "result", "tick", "max_attempts")


def assert_enqueued(app: Operations, task: str | Task[..., Any], **fields: Any) -> Job:
    """The newest pending job of this task whose fields (and `payload`) are as given, or an AssertionError.

    `app` is the app, or the handle of a tenant.
    """
    __tracebackhide__ = True
    name = name_of(task)
    _check(fields)
    near: list[Job] = []
    for job in _pending(app, name):
        if not _differences(job, fields):
            return job
        near.append(job)
    raise AssertionError("\n".join(_missing(app, name, fields, near)))


def assert_not_enqueued(app: Operations, task: str | Task[..., Any] | None = None, **fields: Any) -> None:
    """AssertionError if a job of this task is pending whose fields are as given; without a task, any job."""
    __tracebackhide__ = True
    name = None if task is None else name_of(task)
    _check(fields)
    found = [job for job in _pending(app, name) if not _differences(job, fields)]
    if found:
        which = f"of task {name!r} " if name is not None else ""
        having = f"with {_written(fields)} " if fields else ""
        lines = [f"{len(found)} pending {_jobs(len(found))} {which}{having}should not be there:"]
        lines += [f"  {_shown(job)}" for job in found[:SHOWN]]
        raise AssertionError("\n".join(lines + _more(len(found) - SHOWN)))


def _check(fields: Mapping[str, Any]) -> None:
    for name in fields:
        if name not in COMPARED:
            near = get_close_matches(name, COMPARED, 1)
            hint = f"did you mean {near[0]}?" if near else f"compare one of {', '.join(COMPARED)}"
            raise InvalidJob(name, f"is not a field of a job; {hint}")


def _pending(app: Operations, task: str | None) -> Iterator[Job]:
    """The pending jobs, newest first, page by page."""
    cursor = None
    while True:
        page = app.find(state=State.PENDING, task=task, limit=PAGE, cursor=cursor)
        yield from page.jobs
        cursor = page.cursor
        if cursor is None:
            return


def _differences(job: Job, fields: Mapping[str, Any]) -> list[str]:
    """What is not as wanted, a line each; within payloads, argument by argument."""
    lines = []
    for name, wanted in fields.items():
        found = getattr(job, name)
        if found == wanted:
            continue
        if isinstance(found, dict) and isinstance(wanted, dict):
            lines += [f"{name}[{key!r}] {words}" for key, words in _in_dicts(wanted, found)]
        else:
            lines.append(f"{name} is {found!r}, not {wanted!r}")
    return lines


def _in_dicts(wanted: dict[str, Any], found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for key in {**wanted, **found}:
        if key not in found:
            yield key, f"is missing, not {wanted[key]!r}"
        elif key not in wanted:
            yield key, f"is {found[key]!r}, and was not asked for"
        elif found[key] != wanted[key]:
            yield key, f"is {found[key]!r}, not {wanted[key]!r}"


def _missing(app: Operations, task: str, fields: Mapping[str, Any], near: list[Job]) -> list[str]:
    """What is there instead: jobs of the task that differ, where others of it went, which other tasks have jobs."""
    having = f" with {_written(fields)}" if fields else ""
    lines = [f"no pending job of task {task!r}{having}"]
    if near:
        lines.append(f"pending {_jobs(len(near))} of this task, newest first ({len(near)}):")
        for job in near[:SHOWN]:
            lines += [f"  {_shown(job)}", *(f"    {line}" for line in _differences(job, fields))]
        return lines + _more(len(near) - SHOWN)
    gone = {state: number for state, number in app.count(task=task).items() if number and state is not State.PENDING}
    if gone:
        lines.append(f"not pending any more: {', '.join(f'{number} {state}' for state, number in gone.items())}")
    elif isinstance(app, Treadle) and task not in app.tasks:
        close = get_close_matches(task, app.tasks, 1)
        lines.append(f"the app has no such task{f'; did you mean {close[0]!r}?' if close else ''}")
    others = list(_pending(app, None))
    if others:
        lines.append(f"pending {_jobs(len(others))} of other tasks, newest first ({len(others)}):")
        lines += [f"  {_shown(job)}" for job in others[:SHOWN]]
        return lines + _more(len(others) - SHOWN)
    return [*lines, "nothing at all is pending"]


def _shown(job: Job) -> str:
    return f"{job.task} {job.payload!r} (job {job.id}, queue {job.queue}, due {job.due_at:%Y-%m-%d %H:%M:%S})"


def _written(fields: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in fields.items())


def _jobs(number: int) -> str:
    return "job" if number == 1 else "jobs"


def _more(number: int) -> list[str]:
    return [f"  and {number} more"] if number > 0 else []
