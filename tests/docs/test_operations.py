"""The commands on the pages for operators are there, and so is what an operator of a product must know."""

import importlib
import json
import pkgutil
import re
import shlex
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from annotated_types import Ge

from tests.support.commands import check_command
from treadle import builtin
from treadle.server.dashboard.page import PAGES as SHOWN
from treadle.server.dashboard.search import FIELDS

DOCS = Path(__file__).resolve().parents[2] / "docs"
BACKEND = Path(__file__).resolve().parents[2] / "examples" / "backend"
PAGES = ("operations.md", "deployment.md", "telemetry.md")


def commands(page: str) -> list[str]:
    text = (DOCS / page).read_text("utf-8")
    blocks = "\n".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL))
    inline = re.findall(r"(?<!`)`(treadle [^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return [*inline, *re.findall(r"^(?:.*/)?(treadle .*)$", blocks, re.MULTILINE)]


@pytest.mark.parametrize("page", PAGES)
def test_every_command_on_a_page_is_one_of_ours_with_options_that_it_has(page: str) -> None:
    assert commands(page)
    for line in commands(page):
        check_command(shlex.split(line, comments=True))


# ---------------------------------------------------------------------- a product with a queue: examples/backend


def rows_of(page: str) -> dict[str, list[str]]:
    """The rows of the tables on a page that begin with a name in code, by this name, as plain text."""
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| `")]
    return {cells[0].strip("`"): [cell.replace("`", "") for cell in cells[1:]] for cells in rows}


def of_the_backend(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BACKEND))
    monkeypatch.delitem(sys.modules, name, raising=False)
    module = importlib.import_module(name)
    monkeypatch.delitem(sys.modules, name)
    return module


@pytest.mark.covers("002-O1.a")
def test_the_configuration_page_has_every_key_with_its_default_and_range(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = of_the_backend("config", monkeypatch).JobsConfig.model_fields
    page = (BACKEND / "README.md").read_text("utf-8").partition("## Configuration")[2].partition("\n## ")[0]
    limits = {
        name: " to ".join(str(limit.ge if isinstance(limit, Ge) else limit.le) for limit in field.metadata)
        for name, field in fields.items()
    }
    written = {name: (default, range_) for name, (default, range_, _) in rows_of(page).items()}
    assert written == {
        name: (json.dumps(field.default), limits[name] or "true, false") for name, field in fields.items()
    }
    template = tomllib.loads((BACKEND / "ayb.toml").read_text("utf-8"))["jobs"]
    assert template == {name: field.default for name, field in fields.items()}


@pytest.mark.covers("002-O1.b")
def test_the_guide_explains_when_to_enable_the_queue_and_how_to_run_it(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (DOCS / "operations.md").read_text("utf-8")
    parts = dict(re.findall(r"^## (.*)\n((?:(?!## ).*\n)*)", page, re.MULTILINE))
    assert "Enable it when" in parts["When to use a queue"]
    assert "treadle_oldest_due_seconds" in parts["Queue depth"]
    assert "treadle jobs retry ID" in parts["Failed jobs"]
    assert "production.md#how-many-workers-how-many-slots" in parts["Concurrency"]
    for word in ("list", "preview", "disable", "enable", "run"):
        assert word in parts["Schedules"]
    schedules = of_the_backend("cleanups", monkeypatch).SCHEDULES
    explained = rows_of(parts["Built-in tasks"])
    for name in built_in():
        assert explained.pop(name)
    assert {task: cells[-1] for task, cells in explained.items()} == dict(schedules.values())


def test_every_built_in_task_is_on_its_page_and_in_the_guide() -> None:
    assert len(built_in()) == 5
    for name in built_in():
        assert f"| [`{name}`](" in (DOCS / "builtin.md").read_text("utf-8")
        assert f"| `{name}` |" in (DOCS / "operations.md").read_text("utf-8")


def built_in() -> list[str]:
    """The names of the built-in tasks, as their modules have them."""
    modules = (importlib.import_module(f"treadle.builtin.{one.name}") for one in pkgutil.iter_modules(builtin.__path__))
    return [module.NAME for module in modules if hasattr(module, "NAME")]


@pytest.mark.covers("002-O1.c")
def test_the_dashboard_page_explains_jobs_and_schedules() -> None:
    page = (DOCS / "dashboard.md").read_text("utf-8")
    jobs, schedules = (page.split(f"\n## {name}\n")[1].split("\n## ")[0] for name in ("Jobs", "Schedules"))
    for words in ("tabs", "search field", "*Retry…*", "*Cancel…*", "attempts", "traceback", "Edit and retry"):
        assert words in jobs, words
    for word in FIELDS:  # the search takes what is explained, and the other way round
        assert f"`{word}:" in jobs, word
    for words in (
        "in words",
        "next run",
        "time zone",
        "Switch it off",
        "run it now",
        "change of clocks",
        "what is wrong and where",
    ):
        assert words in schedules, words


def test_the_tour_shows_every_page_of_the_dashboard() -> None:
    tour = (DOCS / "dashboard.md").read_text("utf-8")
    pictures = re.findall(r"\]\(pictures/([a-z]+)[a-z-]*\.png\)", tour)
    for path, name, _ in SHOWN:
        assert f"**{name}**" in tour, name
        assert (path.strip("/") or "overview") in pictures, name
