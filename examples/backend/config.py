"""The table [jobs] of ayb.toml, and AYB_JOBS_* variables, which win over it."""

import json
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from annotated_types import Ge, Le
from pydantic import BaseModel, ConfigDict, Field, ValidationError

FILE = Path("ayb.toml")
TABLE = re.compile(r"^[ \t]*\[[ \t]*jobs[ \t]*\][ \t]*(#.*)?(?P<lines>(\n(?![ \t]*\[).*)*)", re.MULTILINE)
"""The header of [jobs], with a comment or not, and its lines: up to the next table."""


class BadConfig(Exception):
    """A value that cannot be used; the message names it, and what it may be."""


class JobsConfig(BaseModel):
    model_config = ConfigDict(extra="forbid")

    enabled: bool = False
    worker_concurrency: int = Field(4, ge=1, le=64)
    poll_interval_ms: int = Field(1000, ge=100, le=60_000)
    lease_duration_s: int = Field(300, ge=30, le=3600)
    max_retries_default: int = Field(3, ge=0, le=100)
    scheduler_enabled: bool = True
    scheduler_tick_s: int = Field(15, ge=5, le=3600)


def database_url() -> str:
    if url := os.environ.get("DATABASE_URL"):
        return url
    raise BadConfig("DATABASE_URL: is not set; write postgresql://user:password@host/database")


def load() -> JobsConfig:
    table = tomllib.loads(FILE.read_text("utf-8")).get("jobs", {}) if FILE.exists() else {}
    variables = {name: os.environ.get(f"AYB_JOBS_{name.upper()}") for name in JobsConfig.model_fields}
    return checked({**table, **{name: value for name, value in variables.items() if value is not None}})


def get(key: str) -> Any:
    return getattr(load(), known(key))


def set_value(key: str, text: str) -> Any:
    """Write a key to ayb.toml, as the number or the true or false that it is; comments stay."""
    name = known(key)
    value = getattr(checked({name: text}), name)
    line, text = f"{name} = {json.dumps(value)}", FILE.read_text("utf-8") if FILE.exists() else ""
    table = TABLE.search(text)
    if table is None:
        text = f"{text.rstrip()}\n\n[jobs]\n{line}\n".lstrip()
    else:
        lines, found = re.subn(
            rf"^[ \t]*{name}[ \t]*=[^#\n]*?(?=[ \t]*(#|$))", line, table["lines"], flags=re.MULTILINE
        )
        lines = lines if found else f"\n{line}{lines}"
        text = text[: table.start("lines")] + lines + text[table.end() :]
    beside = FILE.with_name(f"{FILE.name}.new")  # a rename is all or nothing
    beside.write_text(text, "utf-8")
    beside.replace(FILE)
    return value


def known(key: str) -> str:
    """The name behind `jobs.`"""
    table, _, name = key.partition(".")
    if table != "jobs" or name not in JobsConfig.model_fields:
        raise BadConfig(f"{key}: there is no such key; there are jobs.{', jobs.'.join(JobsConfig.model_fields)}")
    return name


def checked(values: Mapping[str, Any]) -> JobsConfig:
    try:
        return JobsConfig.model_validate(values)
    except ValidationError as error:
        raise BadConfig("; ".join(problem(str(one["loc"][0]), one["input"]) for one in error.errors())) from None


def problem(name: str, value: Any) -> str:
    limits = {type(limit): limit for limit in JobsConfig.model_fields[known(f"jobs.{name}")].metadata}
    if not limits:
        return f"jobs.{name}: {value!r} must be true or false"
    return f"jobs.{name}: {value!r} must be a whole number from {limits[Ge].ge} to {limits[Le].le}"
