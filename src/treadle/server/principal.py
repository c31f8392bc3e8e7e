"""Who makes a request: what they may do, and of which tenant and queues."""

from collections.abc import Collection
from typing import NamedTuple

from treadle.app.tokens import GRANTS
from treadle.errors import ConfigError
from treadle.model.records import ApiToken


class Principal(NamedTuple):
    """Somebody whom the server knows. `scopes` are what they may do, `actor` is their name in the audit trail.

    With a `tenant` or `queues` they see and change what belongs to these, and nothing else is there for them. `token`
    is the name of their token, if they have one of the store.
    """

    actor: str
    scopes: frozenset[str]
    tenant: str | None = None
    queues: frozenset[str] | None = None
    token: str | None = None

    @classmethod
    def of(
        cls, actor: str, scopes: Collection[str], tenant: str | None = None, queues: Collection[str] | None = None
    ) -> "Principal":
        """With all that these scopes include: `Principal.of("ada", ["operate"])` may read, too."""
        if isinstance(scopes, str) or (unknown := set(scopes) - GRANTS.keys()):
            raise ConfigError(
                f"scopes: {scopes if isinstance(scopes, str) else sorted(unknown)} is not among {[*GRANTS]}"
            )
        granted = frozenset().union(*(GRANTS[scope] for scope in scopes))
        return cls(actor, granted, tenant, None if queues is None else frozenset(queues))

    @classmethod
    def from_token(cls, token: ApiToken) -> "Principal":
        """Who uses this token."""
        who = cls.of(f"token {token.label}", token.scopes, token.only_tenant, token.only_queues)
        return who._replace(token=token.name)

    @property
    def whole(self) -> bool:
        """Whether they see all of the store."""
        return self.tenant is None and self.queues is None
