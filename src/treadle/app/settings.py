"""Settings: arguments, then TREADLE_* variables, treadle.toml, [tool.treadle], the profile; the only reader of them."""

import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, get_origin

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, ValidationInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    PyprojectTomlConfigSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from treadle.engines.values import Retention
from treadle.errors import ConfigError
from treadle.model import MESSAGE_CAP, State, clean
from treadle.model.clock import Duration, seconds

TOML = Path("treadle.toml")
DAY = 86_400.0  # seconds


def _duration(value: Duration, info: ValidationInfo) -> float:
    try:
        return seconds(value, info.field_name or "duration")
    except ConfigError as error:
        raise ValueError(str(error).partition(": ")[2]) from None


def _age(value: Duration | None, info: ValidationInfo) -> float | None:
    if value is None or (isinstance(value, str) and value.strip().lower() == "forever"):
        return None
    try:
        return _duration(value, info)
    except ValueError as error:
        raise ValueError(f"{error}, or 'forever'") from None


def _message(value: str) -> str:
    if clean(value, MESSAGE_CAP) != value:
        raise ValueError(f"must be plain text of at most {MESSAGE_CAP:,} characters, without NUL")
    return value


def _store_url(value: object) -> object:
    """A URL as SQLAlchemy has it, an object or text that names a driver, as we write it."""
    if callable(render := getattr(value, "render_as_string", None)):
        value = render(hide_password=False).replace(" ", "%20")  # the one character that it leaves
    return re.sub(r"^(postgres|postgresql|sqlite)\+\w+://", r"\1://", value) if isinstance(value, str) else value


StoreUrl = Annotated[str, BeforeValidator(_store_url)]
Seconds = Annotated[float, BeforeValidator(_duration)]
Age = Annotated[float | None, BeforeValidator(_age)]
Message = Annotated[str, AfterValidator(_message)]
Ended = Literal[State.SUCCEEDED, State.FAILED, State.CANCELLED]


def _span(age: float | None) -> timedelta | None:
    return None if age is None else timedelta(seconds=age)


class Settings(BaseSettings):
    """Every setting, with its default; durations are seconds, text such as "5m", or a timedelta."""

    model_config = SettingsConfigDict(
        env_prefix="TREADLE_",
        extra="forbid",
        toml_file=TOML,
        pyproject_toml_table_header=("tool", "treadle"),
        validate_default=True,
    )

    url: StoreUrl = "sqlite:///treadle.db"
    listen_url: StoreUrl | None = None
    auto_migrate: bool = False
    app: str | None = None
    queues: list[str] = Field(default=["default"], min_length=1)
    lanes: list[str] | None = None
    concurrency: int = Field(default=10, ge=1, le=1000)
    batch: int | None = Field(default=None, ge=1)
    lease: Seconds = 30.0
    grace: Seconds = 30.0
    poll: Seconds = 1.0
    watch: Seconds = 0.5
    sweep: Seconds = 1.0
    heartbeat: Seconds = 10.0
    schedules: bool = True
    schedule_interval: Seconds = 1.0
    gone_schedules: Literal["disable", "keep"] = "disable"
    budgets: dict[str, Annotated[int, Field(ge=0)]] = {}
    log_jobs: bool = True
    start: Literal["with_next_write", "first"] = "with_next_write"
    unknown_tasks: Literal["leave", "fail"] = "leave"
    expired_jobs: Literal["cancel", "leave"] = "cancel"
    crash_message: Message = ""
    count_claims: bool = False
    cancel: Literal["any", "pending"] = "any"
    tenant_required: bool = False
    enqueue_allow: list[Literal["api", "cli", "sql"]] = ["api", "cli", "sql"]
    audit: Literal["failures", "everything"] = "failures"
    keep_succeeded: Age = 7 * DAY
    keep_cancelled: Age = 7 * DAY
    keep_failed: Age = 30 * DAY
    keep_audit: Age = 90 * DAY
    keep_tasks: dict[str, dict[Ended, Age]] = {}

    @property
    def keep(self) -> Retention:
        """How long finished jobs are kept; what is not named is kept for ever."""
        ages = {
            State.SUCCEEDED: self.keep_succeeded,
            State.CANCELLED: self.keep_cancelled,
            State.FAILED: self.keep_failed,
        }
        return Retention(
            {state: span for state, age in ages.items() if (span := _span(age)) is not None},
            {task: {state: _span(age) for state, age in kept.items()} for task, kept in self.keep_tasks.items()},
        )

    @property
    def audit_retention(self) -> timedelta | None:
        """How long audit events are kept."""
        return _span(self.keep_audit)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (
            init_settings,
            env_settings,
            TomlConfigSettingsSource(settings_cls),
            PyprojectTomlConfigSettingsSource(settings_cls),
        )


def load(defaults: Mapping[str, Any] | None = None, /, **given: Any) -> Settings:
    """The settings in force; `given` wins over everything, all over `defaults`. ConfigError names what is wrong."""
    named = {name: value for name, value in given.items() if value is not None}
    with _explained(named):
        settings = Settings(**named)
        if left := {name: value for name, value in (defaults or {}).items() if name not in settings.model_fields_set}:
            settings = Settings(**named, **left)
    unknown = [name for name in os.environ if name.startswith("TREADLE_") and _unknown(name)]
    if unknown:
        raise ConfigError(f"settings: {unknown[0]} is not a setting{_meant(unknown[0][8:].lower())}")
    return settings


@contextmanager
def _explained(given: Mapping[str, Any]) -> Iterator[None]:
    """Turn Pydantic's errors into ours: which setting, what is wrong with it, and where it comes from."""
    try:
        yield
    except ValidationError as error:
        problems = (
            f"{_problem(item['loc'], item['msg'], item['type'])} ({_source(item['loc'], given)})"
            for item in error.errors()
        )
        raise ConfigError(f"settings: {'; '.join(problems)}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"settings: treadle.toml or pyproject.toml is not valid TOML: {error}") from None
    except SettingsError as error:  # pydantic-settings' own error for a variable that should hold JSON
        raise ConfigError(f"settings: {'; '.join(_not_json()) or error}") from None


def _problem(place: tuple[int | str, ...], message: str, kind: str) -> str:
    if place[-1] == "[key]":
        place, message = place[:-1], "must be succeeded, failed or cancelled"
    if kind == "extra_forbidden":
        message = f"is not a setting{_meant(place[0])}"
    return f"{'.'.join(str(part) for part in place)}: {message.removeprefix('Value error, ')}"


def _source(place: tuple[int | str, ...], given: Mapping[str, Any]) -> str:
    """Where a setting comes from that cannot be used: the first that names it, because that one counts."""
    sources: dict[str, Mapping[str, Any]] = {
        "an argument": given,
        f"TREADLE_{str(place[0]).upper()}": EnvSettingsSource(Settings)(),
        str(TOML): TomlConfigSettingsSource(Settings)(),
        "[tool.treadle] in pyproject.toml": PyprojectTomlConfigSettingsSource(Settings)(),
    }
    return next((source for source, settings in sources.items() if _names(settings, place)), "the profile")


def _names(settings: object, place: tuple[int | str, ...]) -> bool:
    """Whether these settings name what is at this place; tables of several sources are merged, entry by entry."""
    for part in place:
        if not isinstance(settings, Mapping):
            break
        if part not in settings:
            return False
        settings = settings[part]
    return True


def _not_json() -> Iterator[str]:
    """The variables that should hold a list or an object as JSON and do not."""
    given = {name.upper(): value for name, value in os.environ.items()}
    examples: dict[object, str] = {list: '["mail"]', dict: '{"acme": 1000}'}
    for name, field in Settings.model_fields.items():
        variable = f"TREADLE_{name.upper()}"
        example = examples.get(get_origin(field.annotation) or field.annotation)
        try:
            if example is not None:
                json.loads(given.get(variable, "0"))
        except ValueError:
            yield f"{variable} is not valid JSON; write it like {variable}='{example}'"


def _unknown(variable: str) -> bool:
    name = variable.removeprefix("TREADLE_").lower()
    return name not in Settings.model_fields and not name.startswith("test_")


def _meant(name: object) -> str:
    from difflib import get_close_matches  # noqa: PLC0415

    near = get_close_matches(str(name), Settings.model_fields, 1)
    return f", did you mean {near[0]}?" if near else f"; known: {', '.join(Settings.model_fields)}"
