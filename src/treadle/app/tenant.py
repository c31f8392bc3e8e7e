"""A tenant's own view of the app: it can neither see, change nor infer what is another's."""

from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

from treadle.app.operations import Operations
from treadle.engines.contract import Engine, TenantIsolation
from treadle.engines.values import Receipt
from treadle.errors import InvalidJob, UnknownTask
from treadle.model import FollowUp, Job, check_name
from treadle.tasks.registry import TaskRegistry
from treadle.tasks.task import OnConflict, Task

if TYPE_CHECKING:
    from treadle.app.settings import Settings

P = ParamSpec("P")
R = TypeVar("R")


class House(Protocol):
    """The app that all tenants live in."""

    engine: Engine
    settings: "Settings"

    def store_now(self) -> datetime: ...

    def submit(
        self, jobs: list[Job], conflict: OnConflict, tx: Any = None, *, engine: Engine | None = None
    ) -> list[Receipt]: ...

    async def asubmit(
        self, jobs: list[Job], conflict: OnConflict, tx: Any, *, engine: Engine | None = None
    ) -> list[Receipt]: ...


class Tenant(Operations):
    """`app.tenant("acme")`: jobs, schedules and pauses of one tenant."""

    def __init__(self, app: Any, tenant: str) -> None:
        check_name("tenant", tenant)
        self._app: House = app
        self.only_tenant = tenant
        self.profile = app.profile
        self._tasks: TaskRegistry = app.tasks

    @cached_property
    def engine(self) -> Engine:  # type: ignore[override] # opened on first use, as the app's
        engine = self._app.engine
        return engine.for_tenant(self.only_tenant or "") if isinstance(engine, TenantIsolation) else engine

    @property
    def settings(self) -> "Settings":
        return self._app.settings

    def using(self, task: Task[P, R], **options: Any) -> Task[P, R]:
        """The task, enqueueing for this tenant only: `acme.using(welcome, priority=5).enqueue(user)`."""
        if task.name not in self._tasks or self._tasks[task.name].handler is not task.handler:
            raise UnknownTask(task.name, self._tasks)
        return Task(self, task.name, task.handler, task.options).using(**options)

    def enqueue(self, name: str, payload: Any = None, *, checked: bool = True, **using: Any) -> Job:
        """Store a job of this tenant by task name; as `app.enqueue`."""
        task = self._tasks.named(name, checked=checked)
        return Task(self, task.name, task.handler, task.options).using(**using).enqueue_payload(payload)

    # ------------------------------------------------------------------------- as the tasks' enqueuer

    def store_now(self) -> datetime:
        return self._app.store_now()

    def tenant_of(self, named: str | None) -> str:
        """This tenant; InvalidJob if another one is named."""
        return self._of(named) or ""

    def submit(self, jobs: list[Job], conflict: OnConflict, tx: Any = None) -> list[Receipt]:
        return self._own(self._app.submit(jobs, conflict, tx, engine=self.engine))

    async def asubmit(self, jobs: list[Job], conflict: OnConflict, tx: Any) -> list[Receipt]:
        return self._own(await self._app.asubmit(jobs, conflict, tx, engine=self.engine))

    def follow_up(self, wanted: FollowUp | None) -> FollowUp | None:
        return self._tasks.follow_up(wanted)

    def _own(self, receipts: list[Receipt]) -> list[Receipt]:
        for receipt in receipts:
            if receipt.job.tenant != self.only_tenant:
                raise InvalidJob("id", "this id cannot be used; leave it out and treadle makes one")
        return receipts
