"""Slack: the methods of the Web API that a bot posts and looks with."""

import json
from collections.abc import Callable
from typing import Any, ClassVar

from treadle.testing.clock import FakeClock
from treadle.testing.fakes.http_fake import FakeReply, FakeRequest, HttpFake, Refusal

TEAM, BOT, BOT_USER = "T0FAKE", "B0FAKE", "U0FAKEBOT"
LONGEST_TEXT = 40_000
POSTED = ("text", "blocks", "attachments", "thread_ts", "username", "client_msg_id", "metadata")
PARSED = {"blocks", "attachments", "metadata"}  # a form has them as JSON
USUAL = {
    400: "invalid_arguments",
    429: "ratelimited",
    503: "service_unavailable",
    404: "unknown_method",
    401: "invalid_auth",
}


class SlackServer(HttpFake):
    """Give `base_url` and `token` to slack_sdk. `messages` holds what was posted and not deleted."""

    routes: ClassVar[tuple[tuple[str, str, str], ...]] = (
        ("POST", r"/api/([\w.]+)", "_call"),
        ("GET", r"/api/([\w.]+)", "_call"),
    )

    def __init__(self, *, token: str = "xoxb-fake", port: int = 0, clock: FakeClock | None = None) -> None:  # noqa: S107
        super().__init__(port=port, clock=clock)
        self.token = token
        self._channels: dict[str, dict[str, Any]] = {}
        self._users: dict[str, dict[str, Any]] = {}
        self._messages: list[dict[str, Any]] = []
        self._number = 0
        self._methods: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "api.test": lambda asked: {"args": asked},
            "auth.test": self._auth_test,
            "chat.postMessage": self._post,
            "chat.update": self._update,
            "chat.delete": self._delete,
            "conversations.list": self._list_channels,
            "conversations.info": lambda asked: {"channel": self._channel(asked)},
            "conversations.open": self._open,
            "conversations.history": self._history,
            "conversations.replies": self._history,
            "users.list": lambda _: {"members": list(self._users.values())},
            "users.info": lambda asked: {"user": self._user(asked.get("user", ""))},
            "users.lookupByEmail": self._lookup_by_email,
        }
        self.add_channel("general")

    @property
    def base_url(self) -> str:
        """Where the methods are, with the slash that slack_sdk wants."""
        return f"{self.url}/api/"

    @property
    def messages(self) -> list[dict[str, Any]]:
        """What was posted and not deleted, in its order, with `channel`, `ts`, `client_msg_id`, `metadata`."""
        with self._changed:
            return [dict(message) for message in self._messages]

    def add_channel(self, name: str) -> str:
        """A public channel with the bot in it; its id."""
        with self._changed:
            id = f"C0FAKE{len(self._channels) + 1:03}"
            self._channels[id] = {"id": id, "name": name, "is_channel": True, "is_member": True, "is_archived": False}
            return id

    def add_user(self, name: str, *, email: str = "", tz: str = "UTC") -> str:
        """A member of the workspace; its id."""
        with self._changed:
            id = f"U0FAKE{len(self._users) + 1:03}"
            profile = {"real_name": name, "email": email or f"{name.lower()}@example.org"}
            self._users[id] = {"id": id, "team_id": TEAM, "name": name, "tz": tz, "profile": profile, "deleted": False}
            return id

    def error(self, status: int, code: str, message: str) -> dict[str, Any]:  # noqa: ARG002 - Slack has codes only
        return {"ok": False, "error": code or USUAL.get(status, "internal_error")}

    def _call(self, request: FakeRequest, name: str) -> FakeReply:
        asked = _arguments(request)
        token = request.bearer() or asked.pop("token", "")
        if name not in self._methods:
            raise Refusal(200, "unknown_method", "")
        if name != "api.test" and token != self.token:
            raise Refusal(200, "invalid_auth" if token else "not_authed", "")
        return FakeReply(200, {"ok": True, **self._methods[name](asked)})

    def _auth_test(self, _: dict[str, Any]) -> dict[str, Any]:
        bot = {"user": "bot", "user_id": BOT_USER, "bot_id": BOT}
        return {"url": f"{self.url}/", "team": "fake", "team_id": TEAM, **bot}

    def _post(self, asked: dict[str, Any]) -> dict[str, Any]:
        channel = self._channel(asked)
        if not any(asked.get(name) for name in ("text", "blocks", "attachments")):
            raise Refusal(200, "no_text", "")
        if not isinstance(asked.get("text", ""), str):
            raise Refusal(200, "invalid_arguments", "")
        if len(asked.get("text", "")) > LONGEST_TEXT:
            raise Refusal(200, "msg_too_long", "")
        if not _is_metadata(asked.get("metadata", {"event_type": "none", "event_payload": {}})):
            raise Refusal(200, "invalid_metadata_format", "")
        self._number += 1
        ts = f"{self.clock.now().timestamp():.0f}.{self._number:06}"
        kept = {name: asked[name] for name in POSTED if name in asked}
        message = {"type": "message", "user": BOT_USER, "bot_id": BOT, "team": TEAM, "text": "", **kept, "ts": ts}
        self._messages.append({**message, "channel": channel["id"]})
        return {"channel": channel["id"], "ts": ts, "message": message}

    def _update(self, asked: dict[str, Any]) -> dict[str, Any]:
        message = self._message(asked)
        message.update({name: asked[name] for name in POSTED if name in asked}, edited={"user": BOT_USER})
        return {"channel": message["channel"], "ts": message["ts"], "text": message["text"], "message": message}

    def _delete(self, asked: dict[str, Any]) -> dict[str, Any]:
        message = self._message(asked)
        self._messages.remove(message)
        return {"channel": message["channel"], "ts": message["ts"]}

    def _history(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Newest first; of a thread, oldest first. A message's metadata is shown only to those who ask for it."""
        channel, thread = self._channel(asked)["id"], asked.get("ts")
        oldest, latest = float(asked.get("oldest") or 0), float(asked.get("latest") or "inf")
        there = [message for message in self._messages if message["channel"] == channel]
        if thread:
            there = [message for message in there if thread in (message["ts"], message.get("thread_ts"))]
        else:
            there = [m for m in there if m.get("thread_ts", m["ts"]) == m["ts"]][::-1]
            there = [m for m in there if oldest < float(m["ts"]) < latest]
        start, limit = int(asked.get("cursor") or 0), int(asked.get("limit") or 100)
        hidden = {"channel"} if _true(asked.get("include_all_metadata")) else {"channel", "metadata"}
        shown = [{name: m[name] for name in m if name not in hidden} for m in there[start : start + limit]]
        more = start + limit < len(there)
        cursor = {"next_cursor": str(start + limit) if more else ""}
        return {"messages": shown, "has_more": more, "response_metadata": cursor}

    def _open(self, asked: dict[str, Any]) -> dict[str, Any]:
        users = asked.get("users") or ""
        return {"channel": self._direct(users if isinstance(users, str) else ",".join(users))}

    def _list_channels(self, _: dict[str, Any]) -> dict[str, Any]:
        channels = [channel for channel in self._channels.values() if channel.get("is_channel")]
        return {"channels": channels, "response_metadata": {"next_cursor": ""}}

    def _lookup_by_email(self, asked: dict[str, Any]) -> dict[str, Any]:
        found = [user for user in self._users.values() if user["profile"]["email"] == asked.get("email")]
        if not found:
            raise Refusal(200, "users_not_found", "")
        return {"user": found[0]}

    def _channel(self, asked: dict[str, Any]) -> dict[str, Any]:
        """A channel by its id, by #name, or the direct messages of a user by the user's id."""
        wanted = str(asked.get("channel", ""))
        if wanted in self._users:
            return self._direct(wanted)
        for channel in self._channels.values():
            if wanted in (channel["id"], f"#{channel.get('name')}", channel.get("name")):
                return channel
        raise Refusal(200, "channel_not_found", "")

    def _direct(self, users: str) -> dict[str, Any]:
        for user in users.split(","):
            self._user(user)
        id = "D" + users.replace(",", "")[1:]
        return self._channels.setdefault(id, {"id": id, "is_im": True, "user": users})

    def _user(self, id: str) -> dict[str, Any]:
        if id not in self._users:
            raise Refusal(200, "user_not_found", "")
        return self._users[id]

    def _message(self, asked: dict[str, Any]) -> dict[str, Any]:
        where = self._channel(asked)["id"], asked.get("ts")
        for message in self._messages:
            if (message["channel"], message["ts"]) == where:
                return message
        raise Refusal(200, "message_not_found", "")

    def _forget(self) -> None:
        super()._forget()
        self._messages.clear()


def _arguments(request: FakeRequest) -> dict[str, Any]:
    """Of the address, of a form or of JSON; a value in a form that is JSON becomes what it says."""
    if "json" in request.headers.get("Content-Type", "") and request.body:
        try:
            return {**request.query, **json.loads(request.body)}
        except (ValueError, TypeError):
            raise Refusal(200, "invalid_json", "") from None
    asked = {**request.query, **request.form()}
    for name in PARSED & set(asked):
        try:
            asked[name] = json.loads(asked[name])
        except ValueError:
            raise Refusal(200, f"invalid_{name}" + "_format" * (name != "attachments"), "") from None
    return asked


def _is_metadata(value: Any) -> bool:
    event = isinstance(value, dict) and {"event_type", "event_payload"} <= set(value)
    return event or (isinstance(value, dict) and "entities" in value)


def _true(value: Any) -> bool:
    return str(value).lower() in ("1", "true")


def slack(*, token: str = "xoxb-fake", port: int = 0, clock: FakeClock | None = None) -> SlackServer:  # noqa: S107
    """A Slack workspace with the channel #general; see `messages`, `add_channel` and `add_user`."""
    return SlackServer(token=token, port=port, clock=clock)
