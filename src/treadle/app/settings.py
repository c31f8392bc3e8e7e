"""Settings: arguments, then TREADLE_* variables, treadle.toml, [tool.treadle], the profile; the only reader of them.

Each field says all there is to know of a setting: default, range, example and meaning. The table in docs/settings.md,
`treadle config` and the errors are made of them (settings_reference.py, settings_problems.py).
"""

import os
import tomllib
from collections.abc import Mapping
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError, create_model, model_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from treadle.app.settings_values import (
    AGES,
    BUDGETS,
    DAY,
    HOUR,
    MESSAGES,
    NAMES,
    TASK_AGES,
    URLS,
    Age,
    Budget,
    Ended,
    Lane,
    Message,
    Number,
    Queue,
    Seconds,
    StoreUrl,
    TaskName,
    Tenant,
    setting,
)
from treadle.engines.values import Retention
from treadle.errors import ConfigError
from treadle.model import State

PREFIX = "TREADLE_"
TOML = Path("treadle.toml")
PYPROJECT = Path("pyproject.toml")


def _span(age: float | None) -> timedelta | None:
    return None if age is None else timedelta(seconds=age)


class Settings(BaseSettings):
    """Every setting, with its default; durations are seconds, text such as "5m", or a timedelta."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        extra="forbid",
        validate_default=True,
    )

    url: StoreUrl = setting(
        "sqlite:///treadle.db", "where the jobs are", "postgresql://me@db.example.org/shop", range=URLS
    )
    listen_url: StoreUrl | None = setting(
        None,
        "PostgreSQL: a direct connection for LISTEN, if url is a pooler",
        "postgresql://me@db.example.org:5432/shop",
        range="postgresql://…",
    )
    auto_migrate: bool = setting(
        False,
        "PostgreSQL and DynamoDB: create what is missing when the store is opened; SQLite always does",
        True,
    )
    app: str | None = setting(None, "your app, for the command line", "tasks:app", range="module:attribute")
    server: str | None = setting(
        None,
        "a server that the command line asks instead of the database",
        "https://jobs.example.com",
        range="https://…, or http:// on this machine",
    )
    token: str | None = setting(
        None, "the token that this server is asked with", "treadle_…", range="a token of that server", repr=False
    )
    queues: list[Queue] = setting(
        ["default"], "the queues that a worker serves", ["mail", "default"], min_length=1, range=NAMES
    )
    lanes: list[Lane] | None = setting(
        None,
        'the lanes of these queues that it serves, "" is the lane without a name; all, if not set',
        ["express"],
        min_length=1,
        range=NAMES,
    )
    concurrency: Number = setting(10, "how many jobs a worker runs at once", 20, ge=1, le=1000)
    batch: Number | None = setting(None, "the most jobs that a worker claims at once", 50, ge=1, le=500)
    lease: Seconds = setting(
        30.0,
        "how long a job is held without a renewal; a crash is found within this and the sweep",
        "1m",
        ge=0.5,
        le=DAY,
    )
    grace: Seconds = setting(
        30.0, "how long a stop waits for running handlers, and a timeout for a thread to end", "2m", ge=0, le=7 * DAY
    )
    poll: Seconds = setting(1.0, "how often an idle worker looks for jobs that became due", "5s", ge=0.01, le=HOUR)
    watch: Seconds = setting(
        0.5,
        "how often a worker looks whether the jobs it runs were cancelled, and writes their progress",
        "2s",
        ge=0.05,
        le=HOUR,
    )
    sweep: Seconds = setting(1.0, "how often a worker looks for expired leases and expired jobs", "5s", ge=0.05, le=DAY)
    heartbeat: Seconds = setting(10.0, "how often a worker says that it is alive", "30s", ge=0.1, le=HOUR)
    schedules: bool = setting(True, "whether a worker fires schedules", False)
    schedule_interval: Seconds = setting(
        1.0, "how often a worker looks for new and changed schedules; known ones fire in time", "15s", ge=0.05, le=HOUR
    )
    gone_schedules: Literal["disable", "keep"] = setting(
        "disable", "what a worker does to a schedule that code no longer declares; keep marks it and warns", "keep"
    )
    budgets: dict[Tenant, Budget] = setting(
        {}, "what a tenant may spend a day, in millionths; * is any other tenant", {"acme": 5_000_000}, range=BUDGETS
    )
    log_jobs: bool = setting(True, "a line in the log for every job that ends well; off, it is a DEBUG line", False)
    log_format: Literal["text", "json"] = setting(
        "text", "how `treadle worker` and `treadle serve` write their log; json is one object a line", "json"
    )
    start: Literal["with_next_write", "first"] = setting(
        "with_next_write", "when started_at is written; first is before the handler starts, for one more write", "first"
    )
    unknown_tasks: Literal["leave", "fail"] = setting(
        "leave", "fail claims and fails jobs of tasks that no live worker has", "fail"
    )
    expired_jobs: Literal["cancel", "leave"] = setting(
        "cancel", "what happens to a job past its expires_at; leave keeps it pending, though nobody claims it", "leave"
    )
    crash_message: Message = setting(
        "",
        "the error text of a job whose lease expired, instead of treadle's own words",
        "the server was restarted",
        range=MESSAGES,
    )
    count_claims: bool = setting(
        False, "a lease that expires has spent an attempt, though the job may not have started", True
    )
    cancel: Literal["any", "pending"] = setting(
        "any", "which jobs can be cancelled; pending refuses to cancel a running job", "pending"
    )
    tenant_required: bool = setting(False, "refuses a job without a tenant; plain SQL is not checked", True)
    enqueue_allow: list[Literal["api", "cli", "sql"]] = setting(
        ["api", "cli", "sql"], "surfaces beside your own code that may enqueue", ["sql"]
    )
    unknown_payloads: Literal["hide", "show"] = setting(
        "hide", "payloads and results of tasks that neither this program nor a live worker knows", "show"
    )
    audit: Literal["failures", "everything"] = setting(
        "failures", "which events are written; failures includes what operators do", "everything"
    )
    keep_succeeded: Age = setting(7 * DAY, "how long succeeded jobs are kept", "1d", range=AGES)
    keep_cancelled: Age = setting(7 * DAY, "how long cancelled jobs are kept", "2d", range=AGES)
    keep_failed: Age = setting(30 * DAY, "how long failed jobs are kept", "forever", range=AGES)
    keep_audit: Age = setting(90 * DAY, "how long audit events are kept", "365d", range=AGES)
    keep_tasks: dict[TaskName, dict[Ended, Age]] = setting(
        {}, "how long the jobs of some tasks are kept", {"heartbeat": {"succeeded": "1h"}}, range=TASK_AGES
    )

    @model_validator(mode="after")
    def _budgets_find_their_jobs(self) -> Self:
        ages = [self.keep.states, *self.keep.tasks.values()] if self.budgets else []
        if any(age is not None and age.total_seconds() < DAY for kept in ages for age in kept.values()):
            raise ValueError("budgets: costs are read from finished jobs; each keep_… must be '1d' or more")
        return self

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
            InitSettingsSource(settings_cls, read_toml(TOML)),
            InitSettingsSource(settings_cls, read_project()),
        )


def load(defaults: Mapping[str, Any] | None = None, /, **given: Any) -> Settings:
    """The settings in force; `given` wins over everything, all over `defaults`. ConfigError names what is wrong."""
    named = {name: value for name, value in given.items() if value is not None}
    try:
        settings = Settings(**named)
        if left := {name: value for name, value in (defaults or {}).items() if name not in settings.model_fields_set}:
            settings = Settings(**named, **left)
    except (ValidationError, SettingsError, ConfigError) as error:
        from treadle.app.settings_problems import refused  # noqa: PLC0415 - only when something is wrong

        raise refused(error, named, defaults or {}) from None
    if unknown := unknown_variables():
        from treadle.app.settings_problems import unknown_variable  # noqa: PLC0415

        raise unknown_variable(unknown[0])
    return settings


def changed(settings: Settings, options: Mapping[str, Any]) -> Settings:
    """These settings, with other values for some; ConfigError if one of them cannot be used."""
    if not options:
        return settings
    try:
        values = values_model().model_validate(dict(options))
    except ValidationError as error:
        from treadle.app.settings_problems import refused_values  # noqa: PLC0415 - only when something is wrong

        raise refused_values(error, options) from None
    return settings.model_copy(update={name: getattr(values, name) for name in options})


@cache
def values_model() -> type[BaseModel]:
    """The fields of Settings alone: it reads no variable and no file."""
    fields: dict[str, Any] = {name: (field.annotation, field) for name, field in Settings.model_fields.items()}
    return create_model("SettingsValues", __config__=ConfigDict(extra="forbid"), **fields)


def read_toml(path: Path) -> dict[str, Any]:
    """The file as data, empty if there is none; ConfigError if it cannot be read."""
    try:
        return tomllib.loads(path.read_bytes().decode()) if path.is_file() else {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None


def read_project() -> dict[str, Any]:
    """The table [tool.treadle] of pyproject.toml, empty if there is none; ConfigError if it cannot be read."""
    found: Any = read_toml(PYPROJECT)
    for key in ("tool", "treadle"):
        found = found.get(key, {})
        if not isinstance(found, dict):
            raise ConfigError(f"{PYPROJECT}: {key} must be a table")
    return found  # type: ignore[no-any-return] # it is a table


def unknown_variables() -> list[str]:
    """The TREADLE_* variables of the environment that are not settings."""
    return [name for name in os.environ if name.startswith(PREFIX) and _unknown(name)]


def _unknown(variable: str) -> bool:
    name = variable.removeprefix(PREFIX).lower()
    return name not in Settings.model_fields and not name.startswith("test_")
