"""Which module declares a schedule, and whether that module is part of this program: who may say that it is gone."""

import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from types import FrameType
from zlib import crc32

from treadle.model.records import DECLARES, Schedule, subject


def module_name(name: str) -> str:
    """The name under which other processes import a module: that of a script is the name of its file."""
    if name != "__main__":
        return name
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        return str(spec.name).removesuffix(".__main__")
    return Path(file).stem.replace(" ", "_") if file else name


def calling_module() -> str:
    """The name of the module that has called treadle."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith("treadle."):
        frame = frame.f_back
    return "" if frame is None else str(frame.f_globals.get("__name__", ""))


def can_judge(module: str) -> bool:
    """Whether this program has the code that once declared a schedule, as it is now.

    The module is loaded here; or its package is, and the module is not in it any more.
    """
    if not module:
        return False
    if module in sys.modules or module == module_name("__main__"):
        return True
    package = sys.modules.get(module.rpartition(".")[0])
    path = getattr(package, "__path__", None)
    return path is not None and PathFinder.find_spec(module, path) is None


def declaring(declared: Sequence[Schedule]) -> dict[str, int]:
    """By module, as DECLARES and its name, a number for the schedules it declares: equal where the code is."""
    names: dict[str, list[str]] = {}
    for schedule in declared:
        names.setdefault(schedule.declared_in, []).append(subject(schedule))
    return {f"{DECLARES}{module}": crc32(" ".join(sorted(ids)).encode()) for module, ids in names.items()}
