"""`notify.send`: sends to people over Slack, mail, Telegram and whatever else Apprise knows, and in the app.

    notify_send.register(app, {"ops": "slack://…", "ada": ["tgram://…", "mailto://…"]}, in_app=InApp("notifications"))

Channels are named where it is registered. A payload chooses among the names, and never holds a URL.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from hashlib import pbkdf2_hmac
from typing import Annotated, Any, Literal, Self, TypedDict, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, model_validator

from treadle.app.treadle import Treadle
from treadle.builtin.arguments import add_task
from treadle.builtin.notify_apprise import is_one_url, send
from treadle.builtin.notify_rows import InApp, InAppRow, RowRefused, check_in_app, insert_once
from treadle.errors import Ambiguous, Cancelled, ConfigError, GiveUp, InvalidJob, NotDelivered, Parked
from treadle.model import check_name
from treadle.tasks.context import Context, OnAmbiguous
from treadle.tasks.task import Task

__all__ = ["InApp", "Notification", "register"]

NAME = "notify.send"
LONGEST_TITLE = 250  # characters
LONGEST_BODY = 32_000
ROUNDS = 100_000  # about 30 ms a URL

Kind = Literal["info", "success", "warning", "failure"]
Urls = str | SecretStr | Sequence[str | SecretStr]
Outcome = Literal["taken", "unconfirmed", "failed", "parked"]


class Notified(TypedDict):
    """The channels that have taken the message, those of which nobody knows, and whether there is a row in the app."""

    channels: list[str]
    unconfirmed: list[str]
    in_app: bool


class Notification(BaseModel):
    """A payload of `notify.send`: what to send, through which channels, and for whom a row in the app is."""

    model_config = ConfigDict(extra="forbid")

    channels: list[str] = Field(default=[], max_length=100)
    title: str = Field(default="", max_length=LONGEST_TITLE)
    body: str = Field(min_length=1, max_length=LONGEST_BODY)
    type: Kind = "info"
    user: str | None = Field(default=None, min_length=1, max_length=200)

    @model_validator(mode="after")
    def _has_a_receiver(self) -> Self:
        if not self.channels and self.user is None:
            raise ValueError("nobody would get it: name channels, or a user if there is an in-app table")
        return self


class ChannelUrl:
    """One URL of a channel."""

    def __init__(self, channel: str, url: SecretStr, label: str) -> None:
        self.channel, self.label = channel, label
        self._url = url

    @cached_property
    def effect(self) -> str:
        """Its name among the job's memos, wherever the URL stands in its channel.

        People who read the store see it. A URL may hold a short password, so each guess is made to cost something.
        """
        url = self._url.get_secret_value().encode(errors="backslashreplace")
        return f"{self.channel}#{pbkdf2_hmac('sha256', url, self.channel.encode(), ROUNDS, 4).hex()}"

    def send(self, message: Notification) -> bool:
        if not send(self._url, title=message.title, body=message.body, kind=message.type):
            raise NotDelivered(self.label)
        return True


class Notifier:
    """The channels of one registration; neither its repr nor its errors show a URL."""

    def __init__(
        self,
        app: Treadle,
        channels: Mapping[str, Urls],
        in_app: InApp | None,
        name: str,
        on_ambiguous: OnAmbiguous,
    ) -> None:
        self._app, self._in_app, self._name, self._on_ambiguous = app, in_app, name, on_ambiguous
        if not isinstance(channels, Mapping):
            raise ConfigError(
                f'{name}: channels: a {type(channels).__name__} has no names; write {{"ops": "slack://…"}}'
            )
        if not channels and in_app is None:
            raise ConfigError(f'{name}: no channels are named; give it {{"ops": "slack://…"}}, or in_app=')
        if on_ambiguous not in get_args(OnAmbiguous):
            raise ConfigError(f"{name}: on_ambiguous: {on_ambiguous!r} must be 'send', 'park' or 'skip'")
        self._channels = {channel: self._urls_of(channel, given) for channel, given in channels.items()}
        if in_app is not None:
            try:
                check_in_app(in_app, app.settings.url)
            except ConfigError as error:
                raise ConfigError(f"{name}: {error}") from None

    def check(self, message: Notification) -> Notification:
        """Refuse a channel that is not registered, and a user if there is no table."""
        for channel in message.channels:
            if channel not in self._channels:
                there = ", ".join(map(repr, self._channels)) or "none"
                raise ValueError(f"channels: {channel!r} is not a channel of {self._name}; there are {there}")
        if message.user is not None and self._in_app is None:
            raise ValueError(f"user: {self._name} has no in-app table; leave user out, or register it with in_app=")
        return message

    def send(self, ctx: Context, message: Notification) -> Notified:
        """Insert the row, and send to each URL that has not taken the message on an earlier attempt."""
        if message.user is not None and self._in_app is not None:
            self._insert(self._in_app, ctx, message, message.user)
        wanted = list(dict.fromkeys(message.channels))
        ends: dict[Outcome, list[ChannelUrl]] = {outcome: [] for outcome in get_args(Outcome)}
        for channel in wanted:
            if ctx.cancelled:
                raise Cancelled(f"it was asked to stop before it was sent to {channel!r}")
            for url in self._channels[channel]:
                ends[self._outcome(ctx, url, message)].append(url)
        self._raise_for(*(", ".join(url.label for url in ends[outcome]) for outcome in ("parked", "failed")))
        unconfirmed = list(dict.fromkeys(url.channel for url in ends["unconfirmed"]))
        taken = [channel for channel in wanted if channel not in unconfirmed]
        return {"channels": taken, "unconfirmed": unconfirmed, "in_app": message.user is not None}

    def _outcome(self, ctx: Context, url: ChannelUrl, message: Notification) -> Outcome:
        try:
            taken = ctx.once(url.effect, url.send, message, on_ambiguous=self._on_ambiguous)
        except Parked:
            return "parked"
        except (NotDelivered, Ambiguous):
            return "failed"
        return "taken" if taken else "unconfirmed"

    def _raise_for(self, parked: str, failed: str) -> None:
        if parked:
            also = f", and to {failed}, which did not take it" if failed else ""
            raise Parked(
                f"{self._name}: nobody knows whether {parked} took the message: it was begun and did not say how it "
                f"ended. Find out. A retry of the job sends it again to {parked}{also}"
            )
        if failed:
            raise NotDelivered(
                f"{self._name}: {failed} did not take the message; Apprise does not say why. "
                "A retry sends it only to these"
            )

    def _insert(self, in_app: InApp, ctx: Context, message: Notification, user: str) -> None:
        row = InAppRow(ctx.job.id, user, message.type, message.title, message.body, self._app.engine.now())
        try:
            insert_once(in_app, self._app.settings.url, row)
        except RowRefused as error:
            raise GiveUp(
                f"{self._name}: table {in_app.table!r}: {error}; docs/notify.md shows the table it needs"
            ) from None
        except ConfigError as error:
            raise GiveUp(f"{self._name}: {error}") from None

    def _urls_of(self, channel: str, given: Urls) -> list[ChannelUrl]:
        try:
            check_name("channel", f"{channel}#00000000")
        except InvalidJob as error:
            raise ConfigError(f"{self._name}: {error}") from None
        if not isinstance(channel, str) or not channel.strip() or "#" in channel:
            raise ConfigError(f"{self._name}: channel {channel!r}: write a name with at least one letter and without #")
        listed = [given] if isinstance(given, str | SecretStr) else given
        if (
            not isinstance(listed, Sequence)
            or not listed
            or not all(isinstance(one, str | SecretStr) for one in listed)
        ):
            raise ConfigError(f"{self._name}: channel {channel!r}: give it a URL of Apprise, or a list of them")
        urls = list(dict.fromkeys(one if isinstance(one, SecretStr) else SecretStr(one) for one in listed))
        for number, url in enumerate(urls, 1):
            if not is_one_url(url, self._name):
                raise ConfigError(
                    f"{self._name}: channel {channel!r}: Apprise cannot read URL {number} of {len(urls)} as one URL. "
                    "It is not shown because it may hold a secret; try it with: apprise --dry-run --body test URL"
                )
        labels = [channel] if len(urls) == 1 else [f"{channel} (URL {number})" for number in range(1, len(urls) + 1)]
        return [ChannelUrl(channel, url, label) for url, label in zip(urls, labels, strict=True)]


def register(
    app: Treadle,
    channels: Mapping[str, Urls],
    *,
    in_app: InApp | None = None,
    name: str = NAME,
    on_ambiguous: OnAmbiguous = "send",
    **options: Any,
) -> Task[..., Notified]:
    """Register these channels as a task; `options` are those of `app.register`.

    A channel is one URL of Apprise, or a list of them. A payload holds `body`, and may hold `channels`, `title`, `type`
    (info, success, warning, failure) and, with `in_app`, the `user` whom its row is for. `on_ambiguous` says what to do
    with a channel if the worker died while it sent there.
    """
    notifier = Notifier(app, channels, in_app, name, on_ambiguous)

    def notify_send(ctx: Context, message: Notification) -> Notified:
        return notifier.send(ctx, message)

    notify_send.__annotations__["message"] = Annotated[Notification, AfterValidator(notifier.check)]
    return add_task(app, name, notify_send, register, options)
