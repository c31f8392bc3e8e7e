"""A PostgreSQL schema for the tests of one process: made on first use, emptied after each test, dropped at the end."""

import os
import re
import warnings
from functools import cached_property
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from treadle.app.settings import load
from treadle.engines import libpq_url
from treadle.errors import ConfigError

if TYPE_CHECKING:
    from psycopg import Connection

LOCK_TIMEOUT = "5s"


def own_schema(named: str) -> "OwnSchema | None":
    """The schema on the server of this URL; None where tests keep their jobs in memory."""
    url = _expanded(named)
    if url in ("", "sqlite:///:memory:"):
        return None
    url = load(url=url).url
    if not re.match("postgres(ql)?://", url):
        raise ConfigError(
            f"treadle_url: {url!r} must be a PostgreSQL database, or be left out; for any other store write a fixture "
            "treadle_url of your own that returns the URL of an empty one"
        )
    return OwnSchema(url)


class OwnSchema:
    """A schema with a name that nobody else has. It appears when an app with `auto_migrate` first uses it."""

    def __init__(self, url: str) -> None:
        self._server, options = libpq_url(url, "treadle_url")
        self._options = {name: value for name, value in options.items() if name != "schema"}
        self._names = [_new_name()]

    @property
    def url(self) -> str:
        """The store of the next test."""
        options = {"schema": self._names[-1], **self._options}
        added = "&".join(f"{name}={value}" for name, value in options.items())
        return f"{self._server}{'&' if '?' in self._server else '?'}{added}"

    def empty(self) -> None:
        """Leave no row of a test behind. If somebody still holds a lock on them, the next test has another schema."""
        import psycopg  # noqa: PLC0415 - only those who test on PostgreSQL have it

        name = self._names[-1]
        tables = [
            f'"{name}"."{table}"'
            for table, used in self._connection.execute(
                "select relname, pg_relation_size(oid) > 0 from pg_class "
                "where relnamespace = to_regnamespace(%s) and relkind = 'r' and relname <> 'migrations'",
                [name],
            )
            if used
        ]
        try:
            if tables:
                self._connection.execute(f"truncate {', '.join(tables)} restart identity")
        except psycopg.errors.LockNotAvailable:
            self._names.append(_new_name())

    def drop(self) -> None:
        """Remove what was made here from the server; a warning names what somebody still holds a lock on."""
        import psycopg  # noqa: PLC0415

        for name in self._names:
            try:
                self._connection.execute(f'drop schema if exists "{name}" cascade')
            except psycopg.errors.LockNotAvailable:
                warnings.warn(f"schema {name} is still in use, and was left on the server of the tests", stacklevel=2)
        self._connection.close()

    @cached_property
    def _connection(self) -> "Connection[Any]":
        try:
            import psycopg  # noqa: PLC0415
        except ImportError as error:
            raise ConfigError(
                "treadle_url: PostgreSQL needs its driver; run: pip install 'treadle[postgres]'"
            ) from error
        connection = psycopg.connect(self._server, autocommit=True)
        connection.execute(f"set lock_timeout = '{LOCK_TIMEOUT}'")
        connection.execute("set client_min_messages = warning")
        return connection


def _new_name() -> str:
    return f"treadle_test_{uuid4().hex[:12]}"


def _expanded(named: str) -> str:
    """What an ini means: a URL, or the one in an environment variable."""
    variable = re.fullmatch(r"\$\{?(\w+)\}?", named.strip())
    if variable is None:
        return named.strip()
    if not os.environ.get(variable[1]):
        raise ConfigError(
            f"treadle_url: pytest's ini says {named}, and the environment variable {variable[1]} is not set"
        )
    return os.environ[variable[1]]
