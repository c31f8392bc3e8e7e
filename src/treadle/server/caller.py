"""A request's caller and the part of the app that is there for them; every endpoint says which scope it needs."""

import json
from collections.abc import Iterable
from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.security import APIKeyCookie, HTTPBearer

from treadle.app.profile import Profile
from treadle.app.tenant import Tenant
from treadle.app.treadle import Treadle
from treadle.errors import InvalidInput, JobNotFound, KeyTaken
from treadle.model import Job
from treadle.model.records import Schedule
from treadle.server.auth import COOKIE, known
from treadle.server.principal import Principal
from treadle.server.problems import Refused
from treadle.server.strict import check_query

OWN_NAMES = "treadle-own-names"
"""A header of requests: with `1`, jobs are told under treadle's own names, whatever the profile calls them."""


class Caller:
    """Who asks, and what they see. What is not theirs is not there: it is answered as something that does not exist."""

    def __init__(self, app: Treadle, who: Principal, *, own_names: bool = False) -> None:
        self.who = who
        self.actor = who.actor
        self._app = app
        self._profile = Profile() if own_names else None

    @property
    def identity(self) -> str:
        """What tells this caller from others: two tokens may have one label."""
        queues = None if self.who.queues is None else sorted(self.who.queues)
        return json.dumps([self.actor, self.who.tenant, queues, self.who.token])

    @property
    def app(self) -> Treadle | Tenant:
        """The app, everybody's or their tenant's."""
        return self._app if self.who.tenant is None else self._app.tenant(self.who.tenant)

    @property
    def whole(self) -> Treadle:
        """The app as a whole; refused to those who are bound to a tenant or to queues."""
        if not self.who.whole:
            raise Refused(403, "this is about the whole store, and your token is bound to a tenant or to queues")
        return self._app

    @property
    def every_queue(self) -> Treadle | Tenant:
        """The app for what is told of all queues together; refused to those who are bound to some."""
        if self.who.queues is not None:
            raise Refused(403, "this is about all queues, and your token is bound to some of them")
        return self.app

    @property
    def tasks(self) -> Treadle:
        """The app for what its code says, which is the same for everybody."""
        return self._app

    def check_open(self) -> None:
        """Refuse to make a job if the settings close this way."""
        if "api" not in self._app.settings.enqueue_allow:
            raise Refused(403, "enqueueing over the API is closed: the setting enqueue_allow leaves out api")

    def job(self, job_id: str) -> Job:
        """The job of this id, or of the one that begins so; JobNotFound if it is not theirs."""
        whole_id = self.app.resolve_id(job_id, queues=self.who.queues)
        job = self.app.get(whole_id)
        if not self.reaches(job.queue):
            raise JobNotFound(whole_id)
        return job

    @property
    def profile(self) -> Profile:
        """The words in which they are told of jobs and schedules."""
        return self._profile or self.app.profile

    def view(self, job: Job) -> dict[str, Any]:
        """The job as they are told of it."""
        return self.views([job])[0]

    def views(self, jobs: Iterable[Job]) -> list[dict[str, Any]]:
        """Jobs as they are told of them."""
        return self.app.views(jobs, self._profile)

    def masked_schedule(self, schedule: Schedule) -> Schedule:
        """The schedule as they may see it."""
        return self.app.masked_schedule(schedule)

    def reaches(self, queue: str) -> bool:
        """Whether what is on this queue is theirs."""
        return self.who.queues is None or queue in self.who.queues

    def key_taken(self, error: KeyTaken) -> Exception:
        """The error as they may hear it: a job on a queue that is not theirs is not named."""
        if self.who.queues is not None:
            try:
                self.job(error.holder)
            except JobNotFound:
                return key_taken_elsewhere(error.key)
        return error

    def queue(self, queue: str | None) -> str | None:
        """The queue that is meant: of a caller who is bound to queues, one of these."""
        allowed = self.who.queues
        if allowed is None or queue in allowed:
            return queue
        if queue is None and len(allowed) == 1:
            return next(iter(allowed))
        names = ", ".join(sorted(allowed))
        what = f"name one of {names}" if queue is None else f"{queue!r} must be one of {names}"
        raise InvalidInput("queue", f"{what}: your token is bound to them")

    def queue_for(self, task: str, queue: str | None) -> str | None:
        """The queue of something new; None leaves it to the task, whose own queue is one of theirs."""
        known_task = self._app.tasks.get(task)
        if queue is None and known_task is not None and self.reaches(known_task.options.queue):
            return None
        return self.queue(queue)


def key_taken_elsewhere(key: str | None) -> Refused:
    """The answer if a job that is not the caller's holds a key."""
    return Refused(409, f"key {key!r} is held by a job on a queue that your token is not for", error="KeyTaken")


class Needs:
    """A dependency: the caller, who must have this scope, or with SIGNED_IN any."""

    def __init__(self, scope: str) -> None:
        self.scope = scope

    async def __call__(self, request: Request) -> Caller:
        state = request.app.state
        who = await known(state.auth, request)
        if self.scope != SIGNED_IN and self.scope not in who.scopes:
            has = ", ".join(sorted(who.scopes)) or "none"
            raise Refused(403, f"this needs the scope {self.scope}; your token has: {has}", scope=self.scope)
        check_query(request)
        return Caller(state.treadle, who, own_names=request.headers.get(OWN_NAMES) == "1")


SIGNED_IN = "signed in"
"""Instead of a scope: whoever is known is answered."""

SIGN_IN = [  # for the description of the API: `known` looks at what comes
    Depends(HTTPBearer(auto_error=False, description="A token of the store.")),
    Depends(APIKeyCookie(name=COOKIE, auto_error=False, description="The session of a browser.")),
]

Anybody = Annotated[Caller, Depends(Needs(SIGNED_IN))]
Reader = Annotated[Caller, Depends(Needs("read"))]
Producer = Annotated[Caller, Depends(Needs("enqueue"))]
Operator = Annotated[Caller, Depends(Needs("operate"))]
Admin = Annotated[Caller, Depends(Needs("admin"))]
