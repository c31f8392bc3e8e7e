"""Which app and which store a command works on."""

import importlib
import importlib.util
import os
import sys
from operator import attrgetter
from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING, TypeAlias

from treadle.app.profile import Profile
from treadle.app.settings import changed, load
from treadle.app.treadle import Treadle
from treadle.cli.servers import check_at_home, find_server
from treadle.cli.terminal import masked
from treadle.errors import ConfigError, NotPossible

if TYPE_CHECKING:
    from treadle.client import RemoteTreadle

Target: TypeAlias = "Treadle | RemoteTreadle"
"""What the commands of operators work on: a store, or a server that has one."""

SHOWN = Profile(settings={"unknown_payloads": "show"})
SETTINGS = "TREADLE_APP, treadle.toml or [tool.treadle]"
NO_APP = (
    'which app? Give --app module:name, set TREADLE_APP, or write app = "module:name" in treadle.toml or '
    "in [tool.treadle] of pyproject.toml"
)
DJANGO_SETTINGS = "DJANGO_SETTINGS_MODULE"
DJANGO_APP = "treadle.integrations.django"


def find_target(spec: str | None, url: str | None) -> Target:
    """The server of --server, else the store to look at, if its tables are there."""
    return find_server(spec, url) or find_ready_store(spec, url)


def find_target_app(spec: str | None, url: str | None, *, unchecked: bool = False) -> Target:
    """The server of --server, which checks by itself; else the app, or with `unchecked` the store alone."""
    if there := find_server(spec, url):
        return there
    return find_configured(spec, url, SHOWN) if unchecked else find_app(spec, url)


def find_app(spec: str | None, url: str | None) -> Treadle:
    """The app that --app or the settings name, on the store of --url if that is given."""
    check_at_home(spec, url)
    return _find_app(spec, url)


def _find_app(spec: str | None, url: str | None) -> Treadle:
    named = spec if spec is not None else load().app or _app_of_django()
    if named is None:
        raise ConfigError(NO_APP)
    app = _load(named, "--app" if spec is not None else SETTINGS)
    return app if url is None else _moved(app, url, named)


def find_store(spec: str | None, url: str | None) -> Treadle:
    """The store to look at: that of --url, else the app's own, else that of the settings. It need not exist yet."""
    check_at_home(spec, url)
    return find_configured(spec, url)


def find_configured(spec: str | None, url: str | None, profile: Profile | None = None) -> Treadle:
    """`find_store`, whether or not the settings name a server; a store without an app has this profile."""
    if url is not None and spec is None:
        return Treadle(url, profile=profile)
    if spec is None and load().app is None and _app_of_django() is None:
        return Treadle(profile=profile)
    return _find_app(spec, url)


def find_ready_store(spec: str | None, url: str | None) -> Treadle:
    """`find_store`, if its tables are there. Who can open the database sees payloads whose task nobody knows here."""
    check_at_home(spec, url)
    return ready(find_configured(spec, url, SHOWN))


def ready(app: Treadle) -> Treadle:
    """The app itself, if its tables are there: to look at a store must not create it."""
    if drift := app.check_schema(quick=True):
        path, missing, _ = drift[0].partition(" does not exist yet")
        if missing:
            raise NotPossible(
                f"there is no {path}. Wrong directory? Give --url or set TREADLE_URL; `treadle migrate` makes a new one"
            )
        more = f" (and {len(drift) - 1} more)" if len(drift) > 1 else ""
        where = masked(app.settings.url)
        raise NotPossible(
            f"{where} is not ready: {drift[0]}{more}; `treadle migrate` sets it up, if it is the right one"
        )
    return app


def check_open(app: Target) -> None:
    """NotPossible if the command line may not enqueue. Schedules are another matter: it may make and change them."""
    if isinstance(app, Treadle) and "cli" not in app.settings.enqueue_allow:
        raise NotPossible("enqueueing from the command line is closed: the setting enqueue_allow leaves out cli")


def check_spec(spec: str, source: str) -> tuple[str, str]:
    """The module and the name within it; ConfigError if it is not written so."""
    module_name, colon, path = spec.partition(":")
    names = (*module_name.split("."), *path.split("."))
    if not colon or module_name.endswith(".py") or not all(name.isidentifier() for name in names):
        example = f"{Path(module_name).stem or 'tasks'}:{path if path.isidentifier() else 'app'}"
        raise ConfigError(f"app: {spec!r} (from {source}) must be module:name, for example {example}")
    return module_name, path


def _load(spec: str, source: str) -> Treadle:
    module_name, path = check_spec(spec, source)
    here = _import_from_here()
    _set_up_django()
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise broken(module_name, error) from error
        looked = f"{here} and Python's path"
        raise ConfigError(
            f"app: there is no module {error.name!r} (from {source}: {spec}); looked in {looked}"
        ) from None
    except (Exception, SystemExit) as error:
        raise broken(module_name, error) from error
    try:
        found = attrgetter(path)(module)
    except AttributeError:
        apps = [name for name, value in vars(module).items() if isinstance(value, Treadle)]
        there = f"it has {', '.join(f'{module_name}:{name}' for name in apps)}" if apps else "it has no Treadle at all"
        raise ConfigError(f"app: module {module_name} has no {path!r}; {there}") from None
    if not isinstance(found, Treadle):
        raise ConfigError(f"app: {spec} is of type {type(found).__name__}, not a Treadle")
    return found


def _import_from_here() -> str:
    """Let Python look for modules in the working directory too."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    return here


def _app_of_django() -> str | None:
    """The app of the Django project that the environment names, if it has ours among its own."""
    if not _set_up_django():
        return None
    apps = importlib.import_module("django.apps").apps
    return f"{DJANGO_APP}:app" if apps.is_installed(DJANGO_APP) else None


def _set_up_django() -> bool:
    """Set up Django before anybody imports its models, if the environment names settings; whether it is set up."""
    settings = os.environ.get(DJANGO_SETTINGS)
    if not settings or importlib.util.find_spec("django") is None:
        return False
    _import_from_here()
    try:
        importlib.import_module("django").setup()
    except (Exception, SystemExit) as error:
        raise broken(f"{settings} (from {DJANGO_SETTINGS})", error) from error
    return True


def broken(module: str, error: BaseException, field: str = "app") -> ConfigError:
    """The user's module failed while it was imported: say where, in their own file if that can be told."""
    if isinstance(error, SyntaxError):
        place = f"{error.filename}, line {error.lineno}"
    else:
        frames = [frame for frame in extract_tb(error.__traceback__) if not machinery(frame.filename)]
        place = f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else module
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    what = f"{type(error).__name__}: {message}".rstrip(": ")
    return ConfigError(f"{field}: importing {module} failed: {what} ({place}; --debug shows the traceback)")


def machinery(filename: str) -> bool:
    """Whether a file is ours or Python's own, which import the user's."""
    return filename.startswith("<frozen") or filename in (__file__, importlib.__file__)


def _moved(app: Treadle, url: str, spec: str) -> Treadle:
    """The app on another store; too late if it has opened its own."""
    own = app.settings.url
    try:
        app.settings = changed(app.settings, {"url": url})
    except NotPossible:
        raise ConfigError(
            f"url: {spec} opened {masked(own)} while it was imported, so --url comes too late; set TREADLE_URL"
        ) from None
    return app
