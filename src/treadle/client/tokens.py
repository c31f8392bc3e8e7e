"""The tokens of a server."""

from collections.abc import Collection, Sequence
from datetime import datetime

from treadle.app.tokens import NewToken
from treadle.client import values
from treadle.client.transport import Transport, segment
from treadle.client.values import read
from treadle.client.words import when
from treadle.model.clock import Duration
from treadle.model.records import ApiToken


class RemoteTokens:
    """`there.tokens`: who may use the server's API."""

    def __init__(self, http: Transport) -> None:
        self._http = http

    def create(
        self,
        label: str,
        *,
        scopes: Collection[str] = ("read",),
        tenant: str | None = None,
        queues: Sequence[str] | None = None,
        expires: Duration | datetime | None = None,
        actor: str = "",
    ) -> NewToken:
        """Make a token; its secret is told this once."""
        body = {"label": label, "scopes": list(scopes), "tenant": tenant, "queues": queues, "expires": when(expires)}
        answer = self._http.post("/tokens", body)
        return read(lambda: NewToken(values.token_from(answer["token"]), str(answer["secret"])))

    def list(self) -> Sequence[ApiToken]:
        """All tokens, the newest first."""
        answer = self._http.get("/tokens")
        return read(lambda: [values.token_from(token) for token in answer["tokens"]])

    def revoke(self, which: str, *, actor: str = "", reason: str = "") -> ApiToken:
        """Let a token be used no more, from now on."""
        answer = self._http.post(f"/tokens/{segment(which)}/revoke", {"reason": reason})
        return read(lambda: values.token_from(answer["token"]))
