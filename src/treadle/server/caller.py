"""A request's caller and the part of the app that is there for them; every endpoint says which scope it needs."""

import json
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import APIKeyCookie, HTTPBearer

from treadle.app.tenant import Tenant
from treadle.app.treadle import Treadle
from treadle.errors import InvalidInput, JobNotFound
from treadle.model import Job
from treadle.server.auth import COOKIE, known
from treadle.server.principal import Principal
from treadle.server.problems import Refused
from treadle.server.strict import check_query


class Caller:
    """Who asks, and what they see. What is not theirs is not there: it is answered as something that does not exist."""

    def __init__(self, app: Treadle, who: Principal) -> None:
        self.who = who
        self.actor = who.actor
        self._app = app

    @property
    def identity(self) -> str:
        """What tells this caller from others: two tokens may have one name."""
        queues = None if self.who.queues is None else sorted(self.who.queues)
        return json.dumps([self.actor, self.who.tenant, queues])

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

    def job(self, job_id: str) -> Job:
        """The job of this id, or of the one that begins so; JobNotFound if it is not theirs."""
        whole_id = self.app.resolve_id(job_id, queues=self.who.queues)
        job = self.app.get(whole_id)
        if not self.reaches(job.queue):
            raise JobNotFound(whole_id)
        return job

    def reaches(self, queue: str) -> bool:
        """Whether what is on this queue is theirs."""
        return self.who.queues is None or queue in self.who.queues

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


class Needs:
    """A dependency: the caller, who must have this scope."""

    def __init__(self, scope: str) -> None:
        self.scope = scope

    async def __call__(self, request: Request) -> Caller:
        state = request.app.state
        who = await known(state.auth, request)
        if self.scope not in who.scopes:
            has = ", ".join(sorted(who.scopes)) or "none"
            raise Refused(403, f"this needs the scope {self.scope}; your token has: {has}", scope=self.scope)
        check_query(request)
        return Caller(state.treadle, who)


SIGN_IN = [  # for the description of the API: `known` looks at what comes
    Depends(HTTPBearer(auto_error=False, description="A token of the store.")),
    Depends(APIKeyCookie(name=COOKIE, auto_error=False, description="The session of a browser.")),
]

Reader = Annotated[Caller, Depends(Needs("read"))]
Producer = Annotated[Caller, Depends(Needs("enqueue"))]
Operator = Annotated[Caller, Depends(Needs("operate"))]
Admin = Annotated[Caller, Depends(Needs("admin"))]
