"""A request's caller and the part of the app that is there for them; every endpoint says which scope it needs."""

from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Depends, Request

from treadle.app.tenant import Tenant
from treadle.app.treadle import Treadle
from treadle.errors import InvalidInput, JobNotFound
from treadle.model import Job
from treadle.server.auth import known
from treadle.server.principal import Principal
from treadle.server.problems import Refused


class Caller:
    """Who asks, and what they see. What is not theirs is not there: it is answered as something that does not exist."""

    def __init__(self, app: Treadle, who: Principal) -> None:
        self.who = who
        self.actor = who.actor
        self._app = app

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
        job = self.app.get(self.app.resolve_id(job_id))
        if self.who.queues is not None and job.queue not in self.who.queues:
            raise JobNotFound(job_id)
        return job

    def queue(self, queue: str | None) -> str | None:
        """The queue that is meant: of a caller who is bound to queues, one of these."""
        allowed = self.who.queues
        if allowed is None or queue in allowed:
            return queue
        if queue is None and len(allowed) == 1:
            return next(iter(allowed))
        raise InvalidInput(
            "queue", f"{queue!r} must be one of {', '.join(sorted(allowed))}: your token is bound to them"
        )


def needs(scope: str) -> Callable[[Request], Awaitable[Caller]]:
    """A dependency: the caller, who must have this scope."""

    async def caller(request: Request) -> Caller:
        state = request.app.state
        who = await known(state.auth, request)
        if scope not in who.scopes:
            has = ", ".join(sorted(who.scopes)) or "none"
            raise Refused(403, f"this needs the scope {scope}; your token has: {has}", scope=scope)
        return Caller(state.treadle, who)

    return caller


Reader = Annotated[Caller, Depends(needs("read"))]
Producer = Annotated[Caller, Depends(needs("enqueue"))]
Operator = Annotated[Caller, Depends(needs("operate"))]
Admin = Annotated[Caller, Depends(needs("admin"))]
