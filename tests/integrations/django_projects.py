"""A Django project on a database of its own, and its commands, with each Django that this machine can have."""

import os
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
