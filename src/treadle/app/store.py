"""The store of an app: its settings, read once, and its engine, opened on first use and closed with its last user."""

import os
import weakref
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from treadle.engines import connect
from treadle.engines.contract import Engine, TenantIsolation
from treadle.model.clock import Clock

if TYPE_CHECKING:
    from treadle.app.settings import Settings


class Store:
    """What the app, its tasks and its tenants share. When the last of them is gone, the connections are closed."""

    tenant: str | None = None  # whose rows alone are seen; None: everybody's

    def __init__(self, defaults: Mapping[str, Any], given: Mapping[str, Any], clock: Clock | None) -> None:
        self._defaults = defaults
        self._given = given
        self._clock = clock

    @cached_property
    def settings(self) -> "Settings":
        """The settings in force."""
        from treadle.app.settings import load  # noqa: PLC0415 - Pydantic is loaded on first use, not on import

        return load(self._defaults, **self._given)

    @cached_property
    def engine(self) -> Engine:
        settings = self.settings
        engine = connect(
            settings.url,
            clock=self._clock.now if self._clock is not None else None,
            audit_all=settings.audit == "everything",
            auto_migrate=settings.auto_migrate,
            listen_url=settings.listen_url,
            plain_sql="sql" in settings.enqueue_allow if "enqueue_allow" in settings.model_fields_set else None,
        )
        weakref.finalize(self, _close, engine, os.getpid())  # an app that nobody closed
        return engine

    @property
    def opened(self) -> bool:
        """Whether the engine was asked for."""
        return "engine" in self.__dict__

    def close(self) -> None:
        """Close the connections; the next call opens them again."""
        if self.opened:
            self.engine.close()


class TenantStore(Store):
    """The same store as one tenant may see it."""

    def __init__(self, whole: Store, tenant: str) -> None:
        self._whole = whole
        self.tenant = tenant

    @property
    def settings(self) -> "Settings":
        return self._whole.settings

    @cached_property
    def engine(self) -> Engine:
        engine = self._whole.engine
        return engine.for_tenant(self.tenant or "") if isinstance(engine, TenantIsolation) else engine


def _close(engine: Engine, process: int) -> None:
    """Close what this process has opened; a forked child leaves it to its parent."""
    if os.getpid() == process:
        engine.close()
