"""What an operator does to many jobs at once: retry, cancel and delete, by filter or by ids, in batches."""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from itertools import chain, islice
from typing import Any, NamedTuple, TypedDict, Unpack

from treadle.app import queries
from treadle.app.handle import Handle, note
from treadle.app.profile import LABELS
from treadle.edits import Edited, edit_jobs
from treadle.engines.values import JobFilter
from treadle.errors import InvalidJob, JobNotFound, NotPossible
from treadle.model import Change, Job, State, check_name, lifecycle
from treadle.model.clock import Duration, past_moment
from treadle.tasks.faces import async_face
from treadle.tasks.task import Task, name_of

FIRST_IDS = 5  # that a report names
MOST_PROBLEMS = 20  # that a report holds
Decide = Callable[[Job, datetime], Change]
Progress = Callable[["BulkReport"], None]

RETRIED = (State.FAILED,)
RETRIABLE = (State.FAILED, State.CANCELLED)
CANCELLABLE = (State.PENDING, State.RUNNING)
DELETABLE = (State.PENDING, State.SUCCEEDED, State.FAILED, State.CANCELLED)


class Which(TypedDict, total=False):
    """Which jobs are meant: by their `ids`, by filters as in `find`, or with `everything` all of them."""

    ids: Sequence[str]
    state: State | str | None
    task: "str | Task[..., Any] | None"
    queue: str | None
    tenant: str | None
    key: str | None
    lane: str | None
    error: str | None
    since: Duration | datetime | None
    before: Duration | datetime | None
    fingerprint: str | None
    everything: bool


FILTERS = tuple(name for name in Which.__annotations__ if name not in ("ids", "everything"))


class Problem(NamedTuple):
    """A job to which nothing was done, and why."""

    job_id: str
    why: str


class BulkReport(NamedTuple):
    """How far an act on many jobs has come: how many were found, done and not possible.

    `asked` are those among the done that still run, and were asked to stop: they may yet succeed. `first` are the first
    ids found, `problems` the first ones that were not possible. Of a dry run nothing is done; it looks at 50,000
    jobs, and if it is not `exact` there are more of them, or may be.
    """

    found: int = 0
    done: int = 0
    not_possible: int = 0
    asked: int = 0
    first: Sequence[str] = ()
    problems: Sequence[Problem] = ()
    exact: bool = True

    def after(self, jobs: Sequence[Job]) -> "BulkReport":
        """With these jobs found."""
        first = [*self.first, *(job.id for job in islice(jobs, FIRST_IDS - len(self.first)))]
        return self._replace(found=self.found + len(jobs), first=first)

    def plus(self, edited: Edited) -> "BulkReport":
        """With one more job done, or not."""
        if edited.problem is None:
            return self._replace(done=self.done + 1, asked=self.asked + edited.asked)
        problem = Problem(edited.job_id, str(edited.problem))
        problems = [*self.problems, problem][:MOST_PROBLEMS]
        return self._replace(not_possible=self.not_possible + 1, problems=problems)


class Bulk(Handle):
    """Acts on many jobs, everybody's or one tenant's.

    They read the jobs in pages, write each page in one turn, and call `progress` with the report so far. What is
    written stays if they are interrupted; the same call goes on from there.
    """

    def retry_many(
        self,
        *,
        keep_attempts: bool = False,
        dry_run: bool = False,
        actor: str = "api",
        reason: str = "",
        progress: Progress | None = None,
        **which: Unpack[Which],
    ) -> BulkReport:
        """Run failed jobs again, or with `state="cancelled"` cancelled ones.

        Name `ids`, filters as in `find`, or `everything=True`. With `dry_run` they are only counted, up to
        50,000.

        >>> from treadle import Treadle
        >>> app = Treadle("sqlite:///:memory:")
        >>> app.retry_many(task="send", error="TimeoutError", since="1h").done
        0
        """
        text = note(reason)

        def decide(job: Job, now: datetime) -> Change:
            return lifecycle.retry(job, now, actor=actor, note=text, keep_attempts=keep_attempts)

        wanted = self._which(which, RETRIED, RETRIABLE, "retried")
        return self._act(wanted, decide, actor, dry_run, progress)

    def cancel_many(
        self,
        *,
        dry_run: bool = False,
        actor: str = "api",
        reason: str = "",
        progress: Progress | None = None,
        **which: Unpack[Which],
    ) -> BulkReport:
        """Cancel jobs that wait, and ask those that run to stop; which ones, as in `retry_many`."""
        text, only_pending = note(reason), self.settings.cancel == "pending"

        def decide(job: Job, now: datetime) -> Change:
            return lifecycle.cancel(job, now, actor=actor, note=text, only_pending=only_pending)

        wanted = self._which(which, CANCELLABLE, CANCELLABLE, "cancelled")
        return self._act(wanted, decide, actor, dry_run, progress)

    def delete_many(
        self,
        *,
        dry_run: bool = False,
        actor: str = "api",
        reason: str = "",
        progress: Progress | None = None,
        **which: Unpack[Which],
    ) -> BulkReport:
        """Delete jobs that wait or have ended, as `delete` does; which ones, as in `retry_many`."""
        text = note(reason)

        def decide(job: Job, now: datetime) -> Change:
            return lifecycle.delete(job, now, actor=actor, note=text)

        wanted = self._which(which, DELETABLE, DELETABLE, "deleted")
        return self._act(wanted, decide, actor, dry_run, progress)

    def _which(
        self, which: Which, usual: Sequence[State], possible: Sequence[State], done: str
    ) -> queries.Selection | list[str]:
        """What is meant, as a selection or by ids; InvalidJob for a question that cannot be meant."""
        named = [name for name in FILTERS if which.get(name) is not None]
        ids, everything = which.get("ids"), which.get("everything", False)
        for name in which:
            if name not in Which.__annotations__:  # a filter that is mistyped must not mean all jobs
                raise InvalidJob(name, f"is not a filter; known: ids, {', '.join(FILTERS)}, everything")
        if ids is not None:
            if isinstance(ids, str) or not all(isinstance(one, str) for one in ids):
                raise InvalidJob("ids", f"{ids!r} must be a list of ids")
            if named or everything:
                raise InvalidJob("ids", "name jobs by their ids, or by a filter, not both")
            return list(dict.fromkeys(one.lower() for one in ids))
        if not named and not everything:
            raise InvalidJob("everything", "nothing is named: give ids or a filter, or everything=True")
        selection = self._selection(which)
        if selection.meaning is None:
            selection = selection._replace(meaning={state: LABELS[state] for state in usual})
        meaning = {state: labels for state, labels in (selection.meaning or {}).items() if state in possible}
        if not meaning:
            words = ", ".join(dict.fromkeys(self.profile.word(LABELS[state][0]) for state in possible))
            raise InvalidJob("state", f"jobs that are {which.get('state')} cannot be {done}, only: {words}")
        return selection._replace(meaning=meaning)

    def _selection(self, which: Which) -> queries.Selection:
        """The filters as they are asked of a store."""
        now, state = self.engine.now(), which.get("state")
        return queries.Selection(
            JobFilter(
                None,
                _task_name(which.get("task")),
                which.get("queue"),
                self._of(which.get("tenant")),
                which.get("key"),
                which.get("lane"),
            ),
            None if state is None else self.profile.meaning(state),
            which.get("error"),
            past_moment(which.get("since"), now, "since"),
            past_moment(which.get("before"), now, "before"),
            _checked_fingerprint(which.get("fingerprint")),
        )

    def _by_ids(self, ids: Sequence[str]) -> Iterator[list[Job | Edited]]:
        tenant = self._store.tenant
        for start in range(0, len(ids), queries.BATCH_SIZE):
            some = ids[start : start + queries.BATCH_SIZE]
            there = zip(some, self.engine.get(some), strict=True)
            yield [
                job if job is not None and tenant in (None, job.tenant) else Edited(id_, JobNotFound(id_))
                for id_, job in there
            ]

    def _act(
        self,
        wanted: queries.Selection | list[str],
        decide: Decide,
        actor: str,
        dry_run: bool,
        progress: Progress | None,
    ) -> BulkReport:
        check_name("actor", actor)
        report = BulkReport()
        if isinstance(wanted, list):
            pages = self._by_ids(wanted)
        elif dry_run:
            return self._counted(wanted)
        else:
            pages = ([*jobs] for jobs in queries.walk(self.engine, wanted))
        for page in pages:
            jobs = [one for one in page if isinstance(one, Job)]
            missing = [one for one in page if isinstance(one, Edited)]
            report = report.after(jobs)
            tried = self._refused(jobs, decide) if dry_run else edit_jobs(self.engine, jobs, decide, _meant(wanted))
            for edited in chain(missing, tried):
                report = report.plus(edited)
            if progress is not None:
                progress(report)
        return report

    def _refused(self, jobs: Sequence[Job], decide: Decide) -> Iterator[Edited]:
        """Those of these jobs that would be refused."""
        now = self.engine.now()
        for job in jobs:
            try:
                decide(job, now)
            except NotPossible as problem:
                yield Edited(job.id, problem)

    def _counted(self, wanted: queries.Selection) -> BulkReport:
        """How many jobs are meant, as far as a bounded look sees."""
        report, most = BulkReport(), queries.MOST_COUNTED
        if wanted.whole:  # the store can count them
            report = report.after(queries.find(self.engine, wanted, limit=FIRST_IDS, cursor=None).jobs)
            counts = queries.count(self.engine, wanted, limit=most).values()
            found = max(report.found, sum(min(number, most) for number in counts))
            return report._replace(found=found, exact=all(number.exact for number in counts))
        looked, cursor = 0, None
        while looked < most:
            page = queries.find(self.engine, wanted, limit=queries.BATCH_SIZE, cursor=cursor)
            report, looked, cursor = report.after(page.jobs), looked + page.looked, page.cursor
            if cursor is None:
                return report
        return report._replace(exact=False)

    aretry_many = async_face(retry_many)
    acancel_many = async_face(cancel_many)
    adelete_many = async_face(delete_many)


def _meant(wanted: queries.Selection | list[str]) -> Callable[[Job, datetime], bool]:
    """Whether a job that has changed since it was found is still one of these; one that is named by id always is."""
    return (lambda *_: True) if isinstance(wanted, list) else wanted.means


def _checked_fingerprint(text: str | None) -> str | None:
    if text is None:
        return None
    from treadle.model.fingerprint import FINGERPRINT  # noqa: PLC0415 - only operators ask

    if isinstance(text, str) and FINGERPRINT.fullmatch(text):
        return text
    raise InvalidJob("fingerprint", f"{text!r:.100} must be 12 hex digits, as `treadle failures` prints them")


def _task_name(task: "str | Task[..., Any] | None") -> str | None:
    return None if task is None else name_of(task)
