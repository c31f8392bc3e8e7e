"""`notify.send`: tells people something over Slack, mail, Telegram and whatever else Apprise knows, and in the app.

    notify_send.register(app, {"ops": "slack://…", "ada": ["tgram://…", "mailto://…"]}, in_app=InApp("notifications"))

Channels are named where it is registered. A payload chooses among the names, and never holds an address.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self, TypedDict, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, create_model, model_validator

from treadle.app.treadle import Treadle
from treadle.builtin.notify_apprise import is_address, take
from treadle.builtin.notify_rows import InApp, InAppRow, RowRefused, check_in_app, insert_once
from treadle.errors import Cancelled, ConfigError, GiveUp, InvalidJob
from treadle.model import check_name
from treadle.tasks.context import Context, OnAmbiguous
from treadle.tasks.task import Task

__all__ = ["InApp", "Notification", "register"]

NAME = "notify.send"
LONGEST_TITLE = 250  # characters
LONGEST_BODY = 32_000

Kind = Literal["info", "success", "warning", "failure"]
Addresses = str | SecretStr | Sequence[str | SecretStr]


class Notified(TypedDict):
    """The channels that have taken the message, and whether there is a row of it in the app."""

    channels: list[str]
    in_app: bool


class ChannelFailed(Exception):
    """Some channels did not take the message; Apprise does not say why."""


class Notification(BaseModel):
    """A payload of `notify.send`: what to tell, through which channels, and for whom a row in the app is."""

    model_config = ConfigDict(extra="forbid")

    channels: list[str] = Field(default=[], max_length=100)
    title: str = Field(default="", max_length=LONGEST_TITLE)
    body: str = Field(min_length=1, max_length=LONGEST_BODY)
    type: Kind = "info"
    user: str | None = Field(default=None, min_length=1, max_length=200)

    @model_validator(mode="before")
    @classmethod
    def _as_data(cls, value: Any) -> Any:
        """Callers make one of this class, and `register` narrows it to the channels that it was given."""
        return value.model_dump() if isinstance(value, Notification) else value

    @model_validator(mode="after")
    def _somebody_hears_it(self) -> Self:
        if not self.channels and self.user is None:
            raise ValueError("nobody would hear of it: name channels, or a user if there is an in-app table")
        return self


class Notifier:
    """The channels of one registration; neither its repr nor its errors show an address."""

    def __init__(
        self,
        app: Treadle,
        channels: Mapping[str, Addresses],
        in_app: InApp | None,
        name: str,
        on_ambiguous: OnAmbiguous,
    ) -> None:
        self._app, self._in_app, self._name, self._on_ambiguous = app, in_app, name, on_ambiguous
        if not channels and in_app is None:
            raise ConfigError(f'{name}: no channels are named; give it {{"ops": "slack://…"}}, or in_app=')
        if on_ambiguous not in get_args(OnAmbiguous):
            raise ConfigError(f"{name}: on_ambiguous: {on_ambiguous!r} must be 'send', 'park' or 'skip'")
        self._channels = {channel: self._checked(channel, given) for channel, given in channels.items()}
        if in_app is not None:
            try:
                check_in_app(in_app, app.settings.url)
            except ConfigError as error:
                raise ConfigError(f"{name}: {error}") from None

    def model(self) -> type[Notification]:
        """What a payload may say."""
        known, name = tuple(self._channels), self._name

        def check(channel: str) -> str:
            if channel not in known:
                there = ", ".join(map(repr, known)) or "none"
                raise ValueError(f"{channel!r} is not a channel of {name}; there are {there}")
            return channel

        def check_user(user: str | None) -> str | None:
            if user is not None and self._in_app is None:
                raise ValueError(f"{name} has no in-app table; leave user out, or register it with in_app=")
            return user

        return create_model(
            "Notification",
            __base__=Notification,
            channels=(list[Annotated[str, AfterValidator(check)]], Field(default=[], max_length=100)),
            user=(
                Annotated[str | None, AfterValidator(check_user)],
                Field(default=None, min_length=1, max_length=200),
            ),
        )

    def send(self, ctx: Context, message: Notification) -> Notified:
        """Insert the row, and tell each channel that has not taken the message on an earlier attempt."""
        if message.user is not None and self._in_app is not None:
            self._insert(self._in_app, ctx, message, message.user)
        failed: list[str] = []
        wanted = list(dict.fromkeys(message.channels))
        for channel in wanted:
            if ctx.cancelled:
                raise Cancelled(f"it was asked to stop before {channel!r} was told")
            addresses = self._channels[channel]
            for number, address in enumerate(addresses, 1):
                effect = channel if len(addresses) == 1 else f"{channel}#{number}"
                try:
                    ctx.once(effect, self._tell, effect, address, message, on_ambiguous=self._on_ambiguous)
                except ChannelFailed:
                    failed.append(effect)
        if failed:
            raise ChannelFailed(
                f"{self._name}: {', '.join(failed)} did not take the message; Apprise does not say why. "
                "A retry tells only these"
            )
        return {"channels": wanted, "in_app": message.user is not None}

    def _tell(self, effect: str, address: SecretStr, message: Notification) -> None:
        if not take(address, title=message.title, body=message.body, kind=message.type):
            raise ChannelFailed(effect)

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

    def _checked(self, channel: str, given: Addresses) -> list[SecretStr]:
        try:
            check_name("channel", f"{channel}#10")
        except InvalidJob as error:
            raise ConfigError(f"{self._name}: {error}") from None
        if not isinstance(channel, str) or not channel.strip() or "#" in channel:
            raise ConfigError(f"{self._name}: channel {channel!r}: write a name with at least one letter and without #")
        listed = [given] if isinstance(given, str | SecretStr) else given
        if not isinstance(listed, Sequence) or not listed:
            raise ConfigError(f"{self._name}: channel {channel!r}: give it a URL of Apprise, or a list of them")
        addresses = [one if isinstance(one, SecretStr) else SecretStr(one) for one in listed]
        for number, address in enumerate(addresses, 1):
            if not is_address(address, self._name):
                raise ConfigError(
                    f"{self._name}: channel {channel!r}: Apprise cannot read URL {number} of {len(addresses)}. It is "
                    "not shown because it may hold a secret; try it with: apprise --dry-run --body test URL"
                )
        return addresses


def register(
    app: Treadle,
    channels: Mapping[str, Addresses],
    *,
    in_app: InApp | None = None,
    name: str = NAME,
    on_ambiguous: OnAmbiguous = "send",
    **options: Any,
) -> Task[..., Notified]:
    """Register these channels as a task; `options` are those of `app.register`.

    A channel is one URL of Apprise or several. A payload holds `body`, and may hold `channels`, `title`, `type` (info,
    success, warning, failure) and, with `in_app`, the `user` whom its row is for. `on_ambiguous` says what to do with a
    channel if the worker died while it told it.
    """
    notifier = Notifier(app, channels, in_app, name, on_ambiguous)

    def notify_send(ctx: Context, message: Notification) -> Notified:
        return notifier.send(ctx, message)

    notify_send.__annotations__["message"] = notifier.model()
    return app.register(name, notify_send, **options)
