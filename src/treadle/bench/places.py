"""A place of our own in your database: a schema, a file or a table, made for one run and gone after it."""

import re
import secrets
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from treadle import Treadle
from treadle.errors import ConfigError, EngineUnavailable, NotPossible

PREFIX = "treadle_bench_"
OURS = ("schema", "prepare")  # options of a PostgreSQL URL that libpq does not know


class BenchPlace(NamedTuple):
    """Where treadle's tables are, and where the twin's are; a store without SQL has no twin."""

    url: str
    twin: dict[str, str] | None


@contextmanager
def place_in(url: str) -> Iterator[BenchPlace]:
    """Make a place in the store of this URL, and remove it whatever happens."""
    name = PREFIX + secrets.token_hex(4)
    match urlsplit(url).scheme if "://" in url else "":
        case "sqlite":
            making = _folder(url, name)
        case "postgresql" | "postgres":
            making = _schema(url, name)
        case "dynamodb":
            making = _table(url, name)
        case _:
            making = _refused(url)
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        with making as place:
            with Treadle(place.url) as app:
                app.migrate()
            yield place
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _refused(url: str) -> Iterator[BenchPlace]:
    with Treadle(url) as app:
        app.open()  # says what is wrong with the URL
    raise ConfigError("url: write sqlite:///file.db, postgresql://user:password@host/database or dynamodb://table")
    yield BenchPlace(url, None)


@contextmanager
def _folder(url: str, name: str) -> Iterator[BenchPlace]:
    """A folder beside the file: the same disk, and nothing of yours is opened."""
    path, query = unquote(urlsplit(url).path)[1:], urlsplit(url).query
    if path in ("", ":memory:"):
        raise ConfigError("url: give a file such as sqlite:///treadle.db; memory is not what your jobs will lie in")
    folder = Path(path).absolute().parent / name
    try:
        folder.mkdir()
    except OSError as error:
        raise ConfigError(f"url: a folder for the test cannot be made in {folder.parent}: {error.strerror}") from None
    try:
        target = f"sqlite:///{quote(str(folder / 'treadle.db'))}"
        yield BenchPlace(f"{target}?{query}" if query else target, {"path": str(folder / "bare.db")})
    finally:
        with _undisturbed():
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _schema(url: str, name: str) -> Iterator[BenchPlace]:
    """A schema of its own in the same database."""
    plain = without_our_options(url)
    joined = f"{plain}{'&' if '?' in plain else '?'}schema={name}"
    prepare = dict(parse_qsl(urlsplit(url).query)).get("prepare")
    with Treadle(url) as app:
        app.engine.now()  # says what is wrong with the URL, or that nobody answers
    with _undisturbed():
        _run(plain, f"create schema {name}")
    try:
        yield BenchPlace(joined + (f"&prepare={prepare}" if prepare else ""), {"url": plain, "schema": name})
    finally:
        with _undisturbed():
            _run(plain, f"drop schema if exists {name} cascade", f"; the schema {name} may be left: drop it by hand")


@contextmanager
def _table(url: str, name: str) -> Iterator[BenchPlace]:
    """A table of its own, in the same region or behind the same endpoint."""
    parts = re.fullmatch(r"dynamodb://([A-Za-z0-9_.-]+)/?(?:\?([^#]*))?", url, re.IGNORECASE)
    if parts is None:
        Treadle(url).open()  # says what is wrong with the URL
    options = dict(parse_qsl(parts[2] or "")) if parts else {}
    try:
        yield BenchPlace(f"dynamodb://{name}?{urlencode(options)}", None)
    finally:
        with _undisturbed():
            _delete_table(name, options)


def without_our_options(url: str) -> str:
    """A PostgreSQL URL as libpq reads it."""
    head, _, query = url.partition("?")
    theirs = [item for item in query.split("&") if item and item.partition("=")[0] not in OURS]
    return f"{head}?{'&'.join(theirs)}" if theirs else head


def _run(url: str, statement: str, otherwise: str = "") -> None:
    import psycopg  # noqa: PLC0415 - SQLite's users need not have it

    try:
        with psycopg.connect(url, autocommit=True, connect_timeout=10) as connection:
            connection.execute(statement)  # type: ignore[call-overload, unused-ignore]
    except psycopg.errors.InsufficientPrivilege as error:
        raise NotPossible(
            f"this role may not make a schema ({error.diag.message_primary}); let it (grant create on database … to …)"
            f" or give the --url of one that may{otherwise}"
        ) from error
    except psycopg.Error as error:
        raise EngineUnavailable(f"{' '.join(str(error).split())}{otherwise}") from error


def _delete_table(name: str, options: dict[str, Any]) -> None:
    if find_spec("botocore") is None:  # then no table was made
        return
    import botocore.exceptions  # noqa: PLC0415 - only here
    import botocore.session  # noqa: PLC0415

    client = botocore.session.get_session().create_client(
        "dynamodb", region_name=options.get("region"), endpoint_url=options.get("endpoint")
    )
    try:
        client.delete_table(TableName=name)
        client.get_waiter("table_not_exists").wait(TableName=name, WaiterConfig={"Delay": 1, "MaxAttempts": 60})
    except client.exceptions.ResourceNotFoundException:
        pass
    except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError) as error:
        raise EngineUnavailable(f"{error}; the table {name} may be left: delete it by hand") from error


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Tidy up in peace: a second Ctrl-C would leave things behind."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave(number: int, frame: object) -> None:  # noqa: ARG001
    raise SystemExit(128 + number)
