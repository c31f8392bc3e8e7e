"""Stores behind one contract (see base.py); `connect` is the only door."""

import re
from collections.abc import Callable
from datetime import datetime
from typing import TypeVar

from treadle.engines.contract import Engine
from treadle.engines.scripts import Lend
from treadle.errors import ConfigError

N = TypeVar("N", int, float)

SYNCHRONOUS = ("full", "normal")
LONGEST_NAME, LONGEST_PATH = 255, 4000  # bytes of a file name, and of all it is in
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_HALF = re.compile("[\ud800-\udfff]")


def connect(
    url: str,
    *,
    clock: Callable[[], datetime] | None = None,
    audit_all: bool = False,
    auto_migrate: bool = False,
    listen_url: str | None = None,
    plain_sql: bool | None = None,
) -> Engine:
    """The engine behind a URL; nothing is opened until it is used. `audit_all` audits routine events too.

    `plain_sql` is PostgreSQL's: whether its `migrate` lets jobs be enqueued with it; None: as it is. `clock` is for
    tests: without it the store's own clock counts (on SQLite, the machine's).
    """
    from urllib.parse import urlsplit  # when a store is opened, not when treadle is imported

    _check_characters(url, "url")
    try:
        scheme = urlsplit(url).scheme
    except ValueError:  # brackets that do not match; the error shows the URL
        scheme = url.partition("://")[0].lower()
    match scheme:
        case "sqlite":
            return _sqlite(url, clock, audit_all)
        case "postgresql" | "postgres":
            return _postgres(url, clock, audit_all, auto_migrate, listen_url, plain_sql)
        case "dynamodb":
            return _dynamodb(url, clock, audit_all, auto_migrate)
        case "":
            raise ConfigError(f"url: {url!r} has no scheme; write sqlite:///{url or 'treadle.db'}")
        case other:
            known = "sqlite:///file.db, postgresql://user:password@host/database and dynamodb://table"
            raise ConfigError(f"url: no engine for {other!r}; this version of treadle speaks {known}")


def connect_on(
    url: str,
    lend: Lend,
    *,
    written: Callable[[], None] = lambda: None,
    clock: Callable[[], datetime] | None = None,
    audit_all: bool = False,
    plain_sql: bool | None = None,
) -> Engine:
    """An engine on a connection that somebody else opens, commits and closes, one block of `lend` a call.

    The `url` only says which store it is: a file of SQLite, a schema of PostgreSQL. The engine sees what that
    connection has not committed, and what it writes commits with it. It wakes nobody: `written` is called when there is
    something to wake workers for, once that is committed. It is for callers of the app, not for workers. `plain_sql` is
    as in `connect`.
    """
    scheme = url.partition(":")[0].lower()
    if scheme == "sqlite":
        from treadle.engines.sqlite.lent import LentEngine as LentSqliteEngine

        path, _ = sqlite_url(url)
        return LentSqliteEngine(lend, path, written=written, clock=clock, audit_all=audit_all)
    if scheme in ("postgres", "postgresql"):
        try:
            from treadle.engines.postgres.lent import lent_engine
        except ImportError as error:
            _explain_missing_psycopg(error)
            raise

        _, ours = libpq_url(url, "url")
        schema = ours.get("schema", "treadle")
        return lent_engine(
            lend, written=written, schema_name=schema, clock=clock, audit_all=audit_all, plain_sql=plain_sql
        )
    raise ConfigError(f"url: {scheme} has no connection that can be lent; SQLite and PostgreSQL have")


def _postgres(
    url: str,
    clock: Callable[[], datetime] | None,
    audit_all: bool,
    auto_migrate: bool,
    listen_url: str | None,
    plain_sql: bool | None,
) -> Engine:
    try:
        from treadle.engines.postgres.engine import PostgresEngine
    except ImportError as error:
        _explain_missing_psycopg(error)
        raise

    libpq, ours = libpq_url(url, "url")
    direct = None if listen_url is None else libpq_url(listen_url, "listen_url")[0]
    prepare = ours.get("prepare", "auto").lower()
    if prepare not in ("auto", "on", "off"):
        raise ConfigError(f"url: prepare={prepare!r} must be auto, on or off")
    return PostgresEngine.connect(
        libpq,
        schema_name=ours.get("schema", "treadle"),
        prepare=prepare,
        listen_url=direct,
        auto_migrate=auto_migrate,
        plain_sql=plain_sql,
        clock=clock,
        audit_all=audit_all,
    )


def _explain_missing_psycopg(error: ImportError) -> None:
    if not error.name or error.name.partition(".")[0] == "psycopg":
        raise ConfigError("url: PostgreSQL needs its driver; run: pip install 'treadle[postgres]'") from error


def _dynamodb(url: str, clock: Callable[[], datetime] | None, audit_all: bool, auto_migrate: bool) -> Engine:
    from urllib.parse import parse_qsl

    try:
        from treadle.engines.dynamodb.engine import DynamoEngine
    except ImportError as error:
        if error.name and error.name.partition(".")[0] not in ("botocore", "urllib3"):
            raise
        raise ConfigError("url: DynamoDB needs its library; run: pip install 'treadle[dynamodb]'") from error

    parts = re.fullmatch(r"dynamodb://([A-Za-z0-9_.-]{3,255})/?(?:\?(?P<query>[^#]*))?", url, re.IGNORECASE)
    if parts is None:  # not shown: somebody may have written a secret into it
        raise ConfigError(
            "url: write dynamodb://table?region=eu-central-1; credentials come from the environment, a profile, a role"
        )
    options = dict(parse_qsl(parts["query"] or "", keep_blank_values=True))
    known = {"region", "endpoint", "shards", "spread", "skew", "gate"}
    if options.keys() - known:
        strange = ", ".join(sorted(options.keys() - known))
        raise ConfigError(f"url: unknown option {strange}; dynamodb knows {', '.join(sorted(known))}")
    endpoint = options.get("endpoint")
    if endpoint is not None and not re.fullmatch(r"https?://[A-Za-z0-9.-]+(:\d{1,5})?/?", endpoint):
        raise ConfigError("url: endpoint must be an address such as http://localhost:8000")
    if options.get("gate", "off") not in ("on", "off"):
        raise ConfigError("url: gate must be on or off")
    return DynamoEngine(
        parts[1],
        region=options.get("region"),
        endpoint=endpoint,
        shards=_number(options, "shards", 1, 256, 1),
        spread=_number(options, "spread", 1, 256, 64),
        skew=_number(options, "skew", 0, 60, 0.5),
        gate=options.get("gate") == "on",
        auto_migrate=auto_migrate,
        clock=clock,
        audit_all=audit_all,
    )


def _number(options: dict[str, str], name: str, least: int, most: int, default: N) -> N:
    text = options.get(name)
    if text is None:
        return default
    try:
        value = type(default)(text)
    except ValueError:
        value = type(default)(least - 1)
    if not least <= value <= most:
        raise ConfigError(f"url: {name}={text!r} must be a number from {least} to {most}")
    return value


def libpq_url(url: str, setting: str) -> tuple[str, dict[str, str]]:
    """The URL as libpq reads it, and our own options out of it. No message shows more of it than an option's name:
    a password that was not encoded may be anywhere."""
    from urllib.parse import unquote

    _check_characters(url, setting)
    scheme, slashes, rest = url.partition("://")
    head, _, query = rest.partition("?")
    authority, _, database = head.partition("/")
    if re.search(r":\*\*\*@", rest):
        raise ConfigError(
            f"{setting}: its password is ***, as SQLAlchemy shows a URL; pass the URL object itself, or "
            "url.render_as_string(hide_password=False)"
        )
    if _HALF.search(url):
        raise ConfigError(f"{setting}: it holds half a character (a lone surrogate); write it as UTF-8")
    if scheme.lower() not in ("postgresql", "postgres") or not slashes:
        raise ConfigError(f"{setting}: write postgresql://user:password@host/database")
    if "#" in url or re.search("%(?![0-9a-fA-F]{2})", url) or authority.count("@") > 1 or "@" in database:
        raise ConfigError(f"{setting}: write @ : / ? # % in a password as %40 %3A %2F %3F %23 %25")
    options = [item.partition("=") for item in query.split("&") if item]
    for name, equals, _ in options:
        if not equals or not re.fullmatch("[a-z_]+", name):
            which = f' "{name}"' if re.fullmatch("[a-z_]+", name) else ""
            raise ConfigError(
                f"{setting}: what follows the ? must be option=value{which}; in a password write ? as %3F"
            )
    ours = {name: unquote(value) for name, _, value in options if name in ("schema", "prepare")}
    theirs = "&".join("".join(option) for option in options if option[0] not in ours)
    return f"{scheme.lower()}://{head}{'?' if theirs else ''}{theirs}", ours


def _check_characters(url: str, setting: str) -> None:
    """Some of what reads a URL would leave a control character out, and open another store. It is not shown: see
    `libpq_url`."""
    if _CONTROL.search(url):
        raise ConfigError(f"{setting}: it holds a control character, such as a line break at its end; remove it")


def _check_length(path: str) -> None:
    """Systems that take longer names are rare, and what the others say of one is no sentence."""
    try:
        longest = max(len(part.encode("utf-8", "surrogateescape")) for part in path.split("/"))
    except UnicodeEncodeError:
        raise ConfigError("url: the file name holds half a character (a lone surrogate)") from None
    if longest > LONGEST_NAME or len(path) > LONGEST_PATH:
        raise ConfigError(
            f"url: the name of the file is too long: {LONGEST_NAME} bytes, {LONGEST_PATH:,} with its folders"
        )


def sqlite_url(url: str) -> tuple[str, dict[str, str]]:
    """The path of the file in a URL, and the options behind it."""
    from urllib.parse import parse_qsl, unquote, urlsplit

    _check_characters(url, "url")
    parts = urlsplit(url)
    if parts.netloc:
        raise ConfigError(f"url: {url!r} names a host; a file is sqlite:///relative.db or sqlite:////absolute.db")
    if parts.fragment:
        raise ConfigError(f"url: {url!r} holds a #; write it as %23")
    path = unquote(parts.path)[1:] or ":memory:"
    if parts.path == "/":  # a variable that is not set, perhaps: nobody means to lose his jobs
        raise ConfigError(f"url: {url!r} names no file; write sqlite:///treadle.db, or sqlite:///:memory: for no file")
    if "\0" in path:
        raise ConfigError(f"url: {url!r} holds a NUL, which no file name may")
    _check_length(path)
    return path, dict(parse_qsl(parts.query, keep_blank_values=True))


def _sqlite(url: str, clock: Callable[[], datetime] | None, audit_all: bool) -> Engine:
    from treadle.engines.sqlite.engine import SqliteEngine

    path, options = sqlite_url(url)
    synchronous = options.pop("synchronous", "full").lower()
    if synchronous not in SYNCHRONOUS:
        raise ConfigError(f"url: synchronous={synchronous!r} must be one of {', '.join(SYNCHRONOUS)}")
    if options:
        raise ConfigError(f"url: unknown option {', '.join(options)}; sqlite knows synchronous=full|normal")
    return SqliteEngine(path, clock=clock, synchronous=synchronous, audit_all=audit_all)
