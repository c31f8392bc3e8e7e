"""The app that pytest's ini names."""

from importlib import import_module
from operator import attrgetter

from treadle.app.treadle import Treadle
from treadle.errors import ConfigError

WAY_OUT = 'write treadle_app = "module:name" in pytest\'s ini, or a fixture treadle_app of your own'


def named_app(spec: str) -> Treadle:
    """The app of a module: `shop.jobs:app`. What the import of the module raises is raised as it is."""
    module_name, _, path = spec.partition(":")
    if not spec:
        raise ConfigError(f"treadle_app: which app? {WAY_OUT[0].upper()}{WAY_OUT[1:]}")
    if not all(name.isidentifier() for name in (*module_name.split("."), *path.split("."))):
        raise ConfigError(f"treadle_app: {spec!r} must be module:name, for example shop.jobs:app")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise ConfigError(
            f"treadle_app: there is no module {error.name!r} (from {spec}). If it lies in this folder, write "
            'pythonpath = "." in pytest\'s ini'
        ) from None
    try:
        found = attrgetter(path)(module)
    except AttributeError:
        apps = [name for name, value in vars(module).items() if isinstance(value, Treadle)]
        there = f"it has {', '.join(f'{module_name}:{name}' for name in apps)}" if apps else "it has no Treadle at all"
        raise ConfigError(f"treadle_app: module {module_name} has no {path!r}; {there}") from None
    if not isinstance(found, Treadle):
        raise ConfigError(f"treadle_app: {spec} is of type {type(found).__name__}, not a Treadle; {WAY_OUT}")
    return found
