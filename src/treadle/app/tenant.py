"""A tenant's own view of the app: it can neither see, change nor infer what is another's."""

from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from treadle.app.enqueue import Enqueuer
from treadle.app.operations import Operations
from treadle.app.store import TenantStore
from treadle.errors import UnknownTask
from treadle.model import Job, check_name
from treadle.tasks.task import Task

if TYPE_CHECKING:
    from treadle.app.masking import Masking
    from treadle.app.treadle import Treadle
    from treadle.schedules.api import Schedules

P = ParamSpec("P")
R = TypeVar("R")


class Tenant(Operations):
    """`app.tenant("acme")`: jobs, schedules and pauses of one tenant."""

    def __init__(self, app: "Treadle", name: str) -> None:
        check_name("tenant", name)
        super().__init__(TenantStore(app._store, name), app.profile)
        self.name = name
        self._app = app
        self._known = app.tasks.known
        self._enqueuer = Enqueuer(self._store, self._known)

    def using(self, task: Task[P, R], **options: Any) -> Task[P, R]:
        """The task, enqueueing for this tenant only: `acme.using(welcome, priority=5).enqueue(user)`."""
        known = self._app.tasks.get(task.name)
        if known is None or known.handler is not task.handler:
            raise UnknownTask(task.name, self._app.tasks)
        return Task(self._enqueuer, task.definition, task.options).using(**options)

    def enqueue(self, name: str, /, payload: Any = None, *, checked: bool = True, **using: Any) -> Job:
        """Store a job of this tenant by task name; as `app.enqueue`."""
        return self._named(name, checked, using).enqueue_payload(payload)

    async def aenqueue(self, name: str, /, payload: Any = None, *, checked: bool = True, **using: Any) -> Job:
        """`enqueue` for async code."""
        return await self._named(name, checked, using).aenqueue_payload(payload)

    def _named(self, name: str, checked: bool, using: dict[str, Any]) -> Task[..., Any]:
        task = self._app.tasks.named(name, checked=checked)
        return Task(self._enqueuer, task.definition).using(**using)

    @property
    def _masking(self) -> "Masking":
        """What hides secrets: the app's, because the code of a task is the same for all tenants."""
        return self._app._masking

    @property
    def schedules(self) -> "Schedules":
        """This tenant's schedules; as `app.schedules`."""
        return self._app._schedules_in(self._store)
