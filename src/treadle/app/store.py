"""The store of an app: its settings, read once, and its engine, opened on first use and closed with its last user."""

import os
import threading
import weakref
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from treadle.engines import connect, connect_on
from treadle.engines.contract import Engine, TenantIsolation
from treadle.engines.scripts import Lend
from treadle.errors import ConfigError
from treadle.model.clock import Clock

if TYPE_CHECKING:
    from treadle.app.settings import Settings
    from treadle.tasks.hooks import Hooks


class StoreInForce:
    """Settings, read once, and the engine that they name, opened on first use."""

    def __init__(
        self, defaults: Mapping[str, Any], given: Mapping[str, Any], clock: Clock | None, lend: Lend | None = None
    ) -> None:
        self.defaults = defaults
        self.given = given
        self.clock = clock
        self.lend = lend

    @cached_property
    def settings(self) -> "Settings":
        from treadle.app.settings import load  # noqa: PLC0415 - Pydantic is loaded on first use, not on import

        return load(self.defaults, **self.given)

    @cached_property
    def engine(self) -> Engine:
        settings = self.settings
        clock = self.clock.now if self.clock is not None else None
        audit_all = settings.audit == "everything"
        if self.lend is not None:
            if settings.auto_migrate:
                raise ConfigError(
                    "auto_migrate: an app with `lend` makes no tables by itself; leave it False, and call "
                    "app.migrate() where you deploy"
                )
            return connect_on(
                settings.url, self.lend, clock=clock, audit_all=audit_all, plain_sql=plain_sql_of(settings)
            )
        engine = connect(
            settings.url,
            clock=clock,
            audit_all=audit_all,
            auto_migrate=settings.auto_migrate,
            listen_url=settings.listen_url,
            plain_sql=plain_sql_of(settings),
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


class _Kept:
    """An attribute that the first question fetches by `Store.keep`; the instance has it from then on."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, store: "Store | None", owner: type | None = None) -> Any:
        return self if store is None else store.keep(self._name)


class Store:
    """What the app, its tasks and its tenants share. When the last of them is gone, the connections are closed.

    Another store can be put in its place for a while: whoever asks then gets that one's settings and engine. Both are
    kept here from the first question on, because every enqueue asks.
    """

    settings = cast("Settings", _Kept())
    engine = cast(Engine, _Kept())
    tenant: str | None = None  # whose rows alone are seen; None: everybody's
    hooks: "Hooks | None" = None  # of the app, if it has any

    def __init__(
        self, defaults: Mapping[str, Any], given: Mapping[str, Any], clock: Clock | None, lend: Lend | None = None
    ) -> None:
        self._in_force = StoreInForce(defaults, given, clock, lend)
        self._stack = [self._in_force]  # and what was put in its place, the last one in force
        self._switching = threading.Lock()

    def keep(self, name: str) -> Any:
        """What the store in force has of this name, kept here until another one is put in its place."""
        store = self._in_force
        value = getattr(store, name)  # outside the lock: it may open connections, and a fork must not find it locked
        with self._switching:
            if store is self._in_force:
                self.__dict__[name] = value
        return value

    @property
    def opened(self) -> bool:
        """Whether the engine was asked for."""
        return self._in_force.opened

    @property
    def lent(self) -> bool:
        """Whether each call borrows a connection of the caller's."""
        return self._in_force.lend is not None

    @property
    def named_settings(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """What the program itself says of settings: its arguments, and its profile."""
        return self._in_force.given, self._in_force.defaults

    def close(self) -> None:
        """Close the connections; the next call opens them again."""
        self._in_force.close()

    def replace_settings(self, settings: "Settings") -> None:
        """Put other settings in the place of these; the engine stays, if it is open."""
        with self._switching:
            self._in_force.settings = settings
            self._in_force.given = {name: getattr(settings, name) for name in settings.model_fields_set}
            self.__dict__.pop("settings", None)

    def put(self, settings: Mapping[str, Any], clock: Clock | None) -> StoreInForce:
        """Put another store in the place of this one: other `settings`, another `clock`; what is None stays as it is.

        With another url the listen_url is its own too: the one before may lead to another server.
        """
        given = {name: value for name, value in settings.items() if value is not None}
        if "url" in given:
            given = {"listen_url": given["url"], **given}
        with self._switching:
            below = self._stack[-1]
            lend = None if "url" in given else below.lend
            store = StoreInForce(below.defaults, {**below.given, **given}, clock or below.clock, lend)
            self._stack.append(store)
            self._switch()
        return store

    def take_away(self, store: StoreInForce) -> None:
        """Undo `put`: whichever was put last holds, or the own one. What is taken away is closed."""
        with self._switching:
            self._stack.remove(store)
            self._switch()
        store.close()

    def _switch(self) -> None:
        self._in_force = self._stack[-1]
        for name in ("settings", "engine"):
            self.__dict__.pop(name, None)


class TenantStore(Store):
    """The same store as one tenant may see it."""

    def __init__(self, whole: Store, tenant: str) -> None:
        self._whole = whole
        self._bound: tuple[Engine, Engine] | None = None  # the engine of the whole store, and what we made of it
        self.tenant = tenant

    @property
    def hooks(self) -> "Hooks | None":  # type: ignore[override] # those of the whole store
        return self._whole.hooks

    @property
    def settings(self) -> "Settings":  # type: ignore[override]
        return self._whole.settings

    @property
    def engine(self) -> Engine:  # type: ignore[override]
        engine, bound = self._whole.engine, self._bound
        if bound is None or bound[0] is not engine:
            own = engine.for_tenant(self.tenant or "") if isinstance(engine, TenantIsolation) else engine
            self._bound = bound = (engine, own)
        return bound[1]


def plain_sql_of(settings: "Settings") -> bool | None:
    """Whether `migrate` opens plain SQL, or closes it; None: no setting says so."""
    return "sql" in settings.enqueue_allow if "enqueue_allow" in settings.model_fields_set else None


def _close(engine: Engine, process: int) -> None:
    """Close what this process has opened; a forked child leaves it to its parent."""
    if os.getpid() == process:
        engine.close()
