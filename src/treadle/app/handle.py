"""What the handles of an app share: a store, everybody's or one tenant's, and the app's words."""

from typing import TYPE_CHECKING

from treadle.app.profile import Profile
from treadle.app.store import Store
from treadle.engines.contract import Engine
from treadle.errors import InvalidJob
from treadle.model import MESSAGE_CAP, clean
from treadle.model.checks import bound_tenant

if TYPE_CHECKING:
    from treadle.app.settings import Settings


class Handle:
    """A store and a profile: what every call of an operator needs."""

    def __init__(self, store: Store, profile: Profile) -> None:
        self._store = store
        self.profile = profile

    @property
    def settings(self) -> "Settings":
        """The settings in force, read once, on first use."""
        return self._store.settings

    @property
    def engine(self) -> Engine:
        """The store's engine, opened on first use."""
        return self._store.engine

    def _of(self, tenant: str | None) -> str | None:
        """Whose rows are meant; InvalidJob if a bound handle is asked for another's."""
        own = self._store.tenant
        return tenant if own is None else bound_tenant(own, tenant)


def note(reason: str) -> str:
    """An operator's reason, made storable."""
    if not isinstance(reason, str):
        raise InvalidJob("reason", f"{reason!r} must be text")
    return clean(reason, MESSAGE_CAP)
