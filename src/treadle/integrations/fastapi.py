"""FastAPI: the lifespan, a tenant as a dependency, our errors as answers, a job as a response model."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import Depends, Header

from treadle.app.tenant import Tenant
from treadle.app.treadle import Treadle
from treadle.errors import ConfigError
from treadle.integrations.starlette import JobView, WorkerOptions, add_error_handlers, lifespan, running

__all__ = ["JobView", "WorkerOptions", "add_error_handlers", "lifespan", "running", "tenant_of"]


def tenant_of(jobs: Treadle, name: str | Callable[..., Any]) -> Callable[..., Awaitable[Tenant]]:
    """A dependency, the tenant of a request: `Annotated[Tenant, Depends(tenant_of(jobs, customer_of_user))]`.

    `name` is a dependency of yours that returns the tenant's name, or the name of a header. Clients can send any
    header, so name one that your gateway sets.
    """
    if not callable(name) and not (isinstance(name, str) and name):
        raise ConfigError(f"tenant_of: {name!r} must be a dependency or the name of a header")
    source = Header(alias=name) if isinstance(name, str) else Depends(name)

    async def tenant(name: Annotated[str, source]) -> Tenant:
        return jobs.tenant(name)

    return tenant
