"""The jobs in numbers: counted, estimated, by queue and task, and those that failed by what went wrong."""

from datetime import datetime
from typing import TYPE_CHECKING, Any

from treadle.app import queries
from treadle.app.bulk import Bulk, Which
from treadle.app.pauses import Pauses
from treadle.engines.values import Count
from treadle.errors import InvalidJob
from treadle.model import Job, State
from treadle.model.clock import Duration
from treadle.tasks.faces import async_face
from treadle.tasks.task import Task

if TYPE_CHECKING:
    from treadle.app.failures import Failures
    from treadle.app.status import Status


class Numbers(Pauses, Bulk):
    """How many jobs there are and what became of them, everybody's or one tenant's."""

    def masked(self, job: Job) -> Job:
        """The job as people may see it."""
        raise NotImplementedError

    def count(
        self,
        *,
        state: State | str | None = None,
        task: str | Task[..., Any] | None = None,
        queue: str | None = None,
        tenant: str | None = None,
        lane: str | None = None,
        limit: int | None = None,
    ) -> dict[State, Count]:
        """How many jobs there are, by stored state; every state is named.

        `state` as in `find`; what a word means only a part of is counted by reading it, but for parts of the pending
        jobs: how many are scheduled or retrying is known from the look that counts them.

        Without a `limit` all of them are counted. With one, it counts up to so many of a state, and is as quick beside
        a million; only a filter that few jobs match is a scan. A number is then `exact` if there are no more. Else
        there are at least so many; on PostgreSQL it is from its statistics, unless of one tenant. DynamoDB looks at so
        many jobs, and says how many of them match.
        """
        if limit is not None and (not isinstance(limit, int) or limit < 1):
            raise InvalidJob("limit", f"{limit!r} must be a number, 1 or more, or None to count them all")
        wanted = self._selection({"state": state, "task": task, "queue": queue, "tenant": tenant, "lane": lane})
        counts = queries.count(self.engine, wanted, limit=limit)
        return {state: counts.get(state, Count(0)) for state in State}

    def counts(self, /, **where: str | None) -> dict[str, Any]:
        """How many jobs there are, by state or the profile's words for them; those of `estimates` are not exact.

        `where` is `task`, `queue`, `tenant` and `lane`. Of each state it looks at 50,000 jobs at most. Without words of
        a profile, `labels` says how many of the pending jobs are scheduled and retrying; if the number of pending jobs
        is not exact, so many at least.
        """
        limit = queries.MOST_COUNTED
        if self.profile.states:
            words = self.profile.words()
            found = {word: list(self.count(state=word, limit=limit, **where).values()) for word in words}
            labels = {}
        else:
            counts = self.count(limit=limit, **where)
            found = {state.value: [count] for state, count in counts.items()}
            labels = {label: int(counts[State.PENDING].of([label])) for label in ("scheduled", "retrying")}
        estimates = [word for word, parts in found.items() if not all(part.exact for part in parts)]
        numbers = {word: sum(parts) for word, parts in found.items()}
        total = sum(numbers.values())
        return {
            "counts": numbers,
            "labels": labels,
            "total": total,
            "exact": not estimates,
            "estimates": estimates,
        }

    def failures(
        self,
        *,
        task: str | Task[..., Any] | None = None,
        queue: str | None = None,
        tenant: str | None = None,
        since: Duration | datetime | None = None,
        before: Duration | datetime | None = None,
        cursor: str | None = None,
    ) -> "Failures":
        """The jobs that failed, and those that will be tried again, grouped by what went wrong; most jobs first.

        It looks at the 2,000 latest to fail, and at 2,000 that wait; the `cursor` of the answer goes on with those that
        failed earlier. `find` and `retry_many` take the `fingerprint` of a group.
        """
        from treadle.app.failures import failures  # noqa: PLC0415 - only operators ask

        which: Which = {"task": task, "queue": queue, "tenant": tenant, "since": since, "before": before}
        with queries.cursor_errors(cursor):
            return failures(self.engine, self._selection(which), self.masked, cursor=cursor)

    def status(self) -> "Status":
        """An overview: what waits, runs and ended in the last hour, by queue and task; errors, pauses and workers.

        It reads a bounded part of the store, so that it is quick beside millions of jobs: up to 10,000 waiting jobs of
        a queue, and the 10,000 latest ends of a state. A tenant sees its own jobs, and no workers.
        """
        from treadle.app.status import status  # noqa: PLC0415 - only operators ask

        return status(self.engine, self._store.tenant, self.pauses())

    acount = async_face(count)
    acounts = async_face(counts)
    astatus = async_face(status)
    afailures = async_face(failures)
