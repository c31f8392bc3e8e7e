"""Settings, from variables of the environment: each name in capitals."""

from functools import cache

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict


class BadSettings(Exception):
    """A variable that is missing or cannot be used; the message names it."""


class ChatSettings(BaseSettings):
    model_config = SettingsConfigDict(case_sensitive=False)

    database_url: str = Field(repr=False)
    supabase_jwt_secret: str = Field(repr=False, min_length=16)
    gmail_url: str = "https://gmail.googleapis.com"
    google_token_url: str = "https://oauth2.googleapis.com/token"  # noqa: S105 - an address
    google_client_id: str = ""
    google_client_secret: str = Field("", repr=False)
    llm_url: str = "https://api.openai.com"
    llm_api_key: str = Field("", repr=False)
    llm_model: str = "gpt-4.1-mini"
    notify_url: str = ""  # notifications are posted there as JSON; empty: they are rows alone

    runner_poll_seconds: float = Field(5, gt=0, le=60)
    expiry_seconds: float = Field(300, gt=0, le=1800)
    schedules_seconds: float = Field(30, gt=0, lt=60)  # each minute is looked at, or a schedule misses its time
    reminders_seconds: float = Field(60, gt=0, le=3600)
    sessions_seconds: float = Field(60, gt=0, le=3600)
    executors_seconds: float = Field(300, gt=0, le=3600)
    session_idle_minutes: float = Field(30, gt=0)
    executor_idle_minutes: float = Field(30, gt=0)


@cache
def get_settings() -> ChatSettings:
    """The settings, read once."""
    try:
        return ChatSettings()  # type: ignore[call-arg] # from the environment
    except ValidationError as error:
        problems = [f"{str(one['loc'][0]).upper()}: {one['msg'].lower()}" for one in error.errors(include_input=False)]
        raise BadSettings("; ".join(problems)) from None
