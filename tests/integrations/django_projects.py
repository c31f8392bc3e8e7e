"""A Django project on a database of its own, and its commands, with each Django that this machine can have."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.examples.conftest import Running
from tests.support import django_env, forks, provision

PROJECT = Path(__file__).parent / "django_project"
SOURCE = django_env.ROOT / "src"


class Project:
    """The project with one Python and one database."""

    def __init__(self, python: str, database: str, folder: Path) -> None:
        self.python = python
        self.database = database
        self.environment = {
            **os.environ,
            "DATABASE": database,
            "PYTHONPATH": f"{SOURCE}{os.pathsep}{PROJECT}",
            "PYTHONUNBUFFERED": "1",
            "NO_COLOR": "1",
            "COLUMNS": "200",
        }
        self.folder = folder
        self.started: list[Running] = []

    def manage(self, *arguments: str) -> str:
        """What `manage.py` prints; it ends well."""
        command = [self.python, "-W", "error", str(PROJECT / "manage.py"), *arguments]
        done = forks.run(command, cwd=self.folder, env=self.environment, timeout=280)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def shell(self, code: str) -> str:
        """What this code prints in the project."""
        return self.manage("shell", "--verbosity", "0", "--command", code).strip()

    def start(self, *words: str, **environment: str) -> Running:
        self.started.append(Running([self.python, *words], self.folder, {**self.environment, **environment}))
        return self.started[-1]


@pytest.fixture(params=django_env.kinds())
def django_kind(request: pytest.FixtureRequest) -> str:
    """Each Django that this machine can have."""
    return request.param


@pytest.fixture(params=["memory", "file", pytest.param("postgres", marks=[pytest.mark.server, pytest.mark.postgres])])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database for the project's settings."""
    if request.param != "postgres":
        yield str(tmp_path / "shop.db") if request.param == "file" else ""
        return
    url = provision.fresh_database(provision.shared_postgres())
    yield url
    provision.drop_database(url)


@pytest.fixture
def project(django_kind: str, database: str, tmp_path: Path) -> Iterator[Project]:
    made = Project(django_env.python(django_kind), database, tmp_path)
    yield made
    for running in made.started:
        running.clear_away()


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Templates"]:
    made = Templates(tmp_path_factory.mktemp("templates"))
    yield made
    made.clear_away()


class Templates:
    """Databases with the tables of the project, to be copied: one migration for each Django and kind of database."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[tuple[str, bool], str] = {}

    def copy_to(self, project: Project) -> None:
        """Give the project its tables."""
        on_server = project.database.startswith("postgresql:")
        kind = (project.python, on_server)
        if kind not in self._made:
            file = str(self._folder / f"{len(self._made)}.db")
            self._made[kind] = provision.fresh_database(provision.shared_postgres()) if on_server else file
            Project(project.python, self._made[kind], self._folder).manage(
                "migrate", "--run-syncdb", "--verbosity", "0"
            )
        (provision.copy_database if on_server else shutil.copy)(self._made[kind], project.database)

    def clear_away(self) -> None:
        for (_, on_server), database in self._made.items():
            if on_server:
                provision.drop_database(database)
