"""`--server`, `--token` and `--insecure`: a treadle elsewhere, instead of the database. They may stand anywhere."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple

from treadle.app.settings import load
from treadle.errors import ConfigError

if TYPE_CHECKING:
    from treadle.client import RemoteTreadle

AT_HOME = frozenset({"worker", "serve", "dev", "migrate", "rls", "prune", "bench", "demo", "init", "config", "version"})
"""The commands that are about a store, a process or a file of this machine."""

VALUES = ("--server", "--token")


class ServerOptions(NamedTuple):
    """What the command line says of a server."""

    server: str | None = None
    token: str | None = None
    insecure: bool = False


NOTHING = ServerOptions()
_asked: ContextVar[ServerOptions] = ContextVar("server options", default=NOTHING)


def split_options(arguments: list[str]) -> tuple[list[str], ServerOptions]:
    """The arguments without these options, and what they say."""
    kept: list[str] = []
    found: dict[str, str] = {}
    insecure = False
    words = iter(arguments)
    for word in words:
        name, equals, value = word.partition("=")
        if word == "--":
            kept += [word, *words]
        elif word == "--insecure":
            insecure = True
        elif name in VALUES:
            if name in found:
                raise ConfigError(f"{name} was given twice; give it once")
            found[name] = value if equals else next(words, "")
            if not found[name] or found[name].startswith("--"):
                raise ConfigError(f"{name}: its value is missing; write {name} {_example(name)}")
        else:
            kept.append(word)
    options = ServerOptions(found.get("--server"), found.get("--token"), insecure)
    _check_command(kept, options)
    return kept, options


@contextmanager
def asked_for(options: ServerOptions) -> Iterator[None]:
    """Let commands find this server."""
    token = _asked.set(options)
    try:
        yield
    finally:
        _asked.reset(token)


def find_server(spec: str | None, url: str | None) -> "RemoteTreadle | None":
    """The server of --server, or of the settings unless --app or --url names a store; None without one."""
    options = _asked.get()
    named = "--app" if spec is not None else "--url" if url is not None else None
    if options.server is not None and named is not None:
        raise ConfigError(f"--server and {named} cannot be given together: a server has a store of its own")
    settings = None if named is not None else load()
    server = options.server or (settings.server if settings else None)
    if not server:
        if options.token is not None or options.insecure:
            raise ConfigError("--token and --insecure are about a server: give --server, or set TREADLE_SERVER")
        return None
    from treadle.client import RemoteTreadle  # noqa: PLC0415 - HTTP and TLS are loaded where they are used

    token = options.token or (settings.token if settings else None)
    found = RemoteTreadle(server, token, insecure=options.insecure)
    found.open()
    return found


def check_at_home(spec: str | None, url: str | None) -> None:
    """Refuse to work on a store of this machine where a server is meant."""
    options = _asked.get()
    if options.server is not None:
        raise ConfigError("--server: this command works on the store itself; give --app or --url instead")
    if spec is None and url is None and load().server:
        raise ConfigError(
            "server: the settings name one, and this command works on the store itself: say which by --app or --url"
        )


def _check_command(arguments: list[str], options: ServerOptions) -> None:
    command = next((word for word in arguments if not word.startswith("-")), "")
    if options != NOTHING and command in AT_HOME:
        raise ConfigError(
            f"treadle {command} works on this machine, not on a server; leave out --server, --token and --insecure"
        )


def _example(name: str) -> str:
    return "https://jobs.example.com" if name == "--server" else "treadle_…"
