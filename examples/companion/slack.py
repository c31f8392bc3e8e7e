"""Slack's Web API over plain HTTP: no package is needed, and `url` may be that of a stand-in."""

import json
from collections.abc import Iterator
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from treadle import Ambiguous, GiveUp, Snooze

TIMEOUT = 30  # seconds
PASSING = {"internal_error", "fatal_error", "service_unavailable", "request_timeout", "team_added_to_org"}
BUSY = {"ratelimited", "rate_limited", "message_limit_exceeded"}
ADVICE = {
    "channel_not_found": "set SLACK_CHANNEL to the id of a channel that the bot is in",
    "not_in_channel": "invite the bot to SLACK_CHANNEL",
    "invalid_auth": "set SLACK_TOKEN to the bot's token",
    "token_revoked": "set SLACK_TOKEN to the bot's new token",
    "user_not_found": "nobody in the workspace has this id",
}


class Slack:
    def __init__(self, url: str, token: str) -> None:
        self._url, self._token = url, token

    def call(self, method: str, **arguments: Any) -> dict[str, Any]:
        """The answer; GiveUp if no repetition helps, Ambiguous if nobody knows what Slack has done.

        Snooze if Slack has too much to do: it did nothing, and the job waits without spending an attempt.
        """
        fields = {name: value if isinstance(value, str) else json.dumps(value) for name, value in arguments.items()}
        headers = {"Authorization": f"Bearer {self._token}"}
        request = Request(f"{self._url.rstrip('/')}/{method}", urlencode(fields).encode(), headers)  # noqa: S310
        try:
            with urlopen(request, timeout=TIMEOUT) as answer:  # noqa: S310 - the operator names the address
                reply = json.load(answer)
        except HTTPError as error:
            error.close()
            if error.code == 429:
                raise Snooze(f"{error.headers.get('Retry-After', '60')}s") from None
            raise Ambiguous(f"slack: {method} answered {error.code}") from None
        if not reply["ok"]:
            code = reply["error"]
            if code in BUSY:
                raise Snooze("1m")
            if code in PASSING:
                raise Ambiguous(f"slack: {method}: {code}")
            raise GiveUp(f"slack: {method}: {code}; {ADVICE.get(code, 'see what this method may answer')}")
        return reply  # type: ignore[no-any-return] # an answer as it came

    def pages(self, method: str, part: str, **arguments: Any) -> Iterator[dict[str, Any]]:
        """What a method lists under the name `part`, page by page."""
        cursor: str | None = ""
        while cursor is not None:
            answer = self.call(method, limit=200, cursor=cursor, **arguments)
            yield from answer[part]
            cursor = answer.get("response_metadata", {}).get("next_cursor") or None
