"""Tokens of the REST API: made, listed, revoked, and looked up by the server.

A token is 256 random bits, shown once. The store keeps its hash, so that nobody who reads the store can use it.
"""

import secrets
from collections.abc import Collection, Sequence
from datetime import datetime
from hashlib import sha256
from hmac import compare_digest
from typing import NamedTuple

from treadle.app.handle import note
from treadle.edits import AuditedRecords
from treadle.errors import InvalidInput, NotPossible
from treadle.model import Event, EventKind, check_name
from treadle.model.clock import Duration, moment
from treadle.model.records import ANY, ApiToken, subject
from treadle.tasks.faces import async_face

PREFIX = "treadle_"
BITS = 256
NAME_LENGTH = 12  # hexadecimal digits of the hash that a token is found by
LONGEST_TOKEN = 100  # characters of what may be one
MOST_TRIES = 5

GRANTS = {
    "read": frozenset({"read"}),
    "enqueue": frozenset({"enqueue"}),
    "operate": frozenset({"read", "operate"}),
    "admin": frozenset({"read", "enqueue", "operate", "admin"}),
}
"""What each scope allows: to look; to store jobs and no more; to act on jobs, schedules and pauses; everything."""


class NewToken(NamedTuple):
    """A token as it is made: `secret` is what a client sends, and is shown this once."""

    token: ApiToken
    secret: str


def same(given: str, kept: str) -> bool:
    """Whether two secrets are the same, in a time that does not tell where they differ. All of ours come here."""
    return compare_digest(given.encode("utf-8", "surrogatepass"), kept.encode("utf-8", "surrogatepass"))


class Tokens:
    """`app.tokens`: who may use the REST API."""

    def __init__(self, engine: AuditedRecords) -> None:
        self._engine = engine

    def create(
        self,
        label: str,
        *,
        scopes: Collection[str] = ("read",),
        tenant: str | None = None,
        queues: Sequence[str] | None = None,
        expires: Duration | datetime | None = None,
        actor: str = "api",
    ) -> NewToken:
        """Make a token: what people call it, what it allows, and for which tenant, queues and time, if not for all."""
        check_name("label", label)
        check_name("actor", actor)
        if tenant is not None:
            check_name("tenant", tenant)
        now = self._engine.now()
        secret = f"{PREFIX}{secrets.token_urlsafe(BITS // 8)}"
        digest = _hash(secret)
        token = ApiToken(
            digest[:NAME_LENGTH],
            digest,
            label,
            _checked_scopes(scopes),
            actor,
            now,
            tenant,
            None if queues is None else _checked_queues(queues),
            _end(expires, now),
        )
        event = _event(token, EventKind.CREATED, now, actor, f"with {', '.join(token.scopes)}")
        if not self._engine.save(token, before=None, event=event).done:
            raise NotPossible(f"token {label!r} was not stored; try again")
        return NewToken(token, secret)

    def list(self) -> Sequence[ApiToken]:
        """All tokens, also those that are revoked or have expired; the newest first."""
        return sorted(self._engine.records(ApiToken), key=lambda token: token.created_at, reverse=True)

    def revoke(self, which: str, *, actor: str = "api", reason: str = "") -> ApiToken:
        """Let a token be used no more, from now on; `which` is its name, or its label if only one usable has that."""
        check_name("actor", actor)
        for _ in range(MOST_TRIES):
            token, now = self._meant(which), self._engine.now()
            revoked = token.evolve(revoked_at=now, revision=token.revision + 1)
            event = _event(revoked, EventKind.REVOKED, now, actor, note(reason))
            if self._engine.save(revoked, before=token, event=event).done:
                return revoked
        raise NotPossible(f"token {which!r} keeps changing; try again")

    def find(self, secret: str) -> ApiToken | None:
        """The usable token that this is. Every way into the server asks here, and the compare takes constant time."""
        if len(secret) > LONGEST_TOKEN:
            return None
        digest = _hash(secret)
        for token in self._engine.records(ApiToken, name=digest[:NAME_LENGTH]):
            if same(token.hash, digest) and token.usable(self._engine.now()):
                return token
        return None

    def usable(self, name: str) -> ApiToken | None:
        """The token of this name, if it can still be used."""
        now = self._engine.now()
        return next((token for token in self._engine.records(ApiToken, name=name) if token.usable(now)), None)

    def _meant(self, which: str) -> ApiToken:
        usable = [token for token in self.list() if token.usable(self._engine.now())]
        meant = [token for token in usable if which in (token.name, token.label)]
        if len(meant) == 1:
            return meant[0]
        if not meant:
            raise NotPossible(f"there is no usable token {which!r}; `treadle tokens list` shows them")
        names = ", ".join(token.name for token in meant)
        raise NotPossible(f"{len(meant)} tokens are called {which!r}; give one of their names: {names}")

    acreate = async_face(create)
    alist = async_face(list)
    arevoke = async_face(revoke)


def _hash(secret: str) -> str:
    return sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _checked_scopes(scopes: Collection[str]) -> list[str]:
    known = ", ".join(GRANTS)
    if isinstance(scopes, str) or not scopes:
        raise InvalidInput("scopes", f"{scopes!r} must be a list of at least one of {known}")
    for scope in scopes:
        if scope not in GRANTS:
            raise InvalidInput("scopes", f"{scope!r} must be one of {known}")
    return [scope for scope in GRANTS if scope in scopes]


def _checked_queues(queues: Sequence[str]) -> list[str]:
    if isinstance(queues, str) or not queues:
        raise InvalidInput("queues", f"{queues!r} must be a list of at least one queue")
    for queue in queues:
        check_name("queue", queue)
    return [*queues]


def _end(expires: Duration | datetime | None, now: datetime) -> datetime | None:
    end = moment(expires, now, "expires")
    if end is not None and end <= now:
        raise InvalidInput("expires", f"{expires!r} must be in the future, such as '30d'")
    return end


def _event(token: ApiToken, kind: EventKind, now: datetime, actor: str, what: str) -> Event:
    words = f"token {token.label} ({token.name})"
    about = f"{words}: {what}" if what else words
    return Event(subject(token), token.revision, now, kind, actor, about, token.only_tenant or ANY)
