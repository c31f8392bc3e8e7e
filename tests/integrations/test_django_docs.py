"""docs/django.md, followed by somebody with an empty project: the files as printed, the commands, the test."""

import re
from pathlib import Path

import pytest

from tests.integrations.django_projects import SOURCE
from tests.support import django_env, forks

PAGE = (django_env.ROOT / "docs" / "django.md").read_text("utf-8")
DASHBOARD = (django_env.ROOT / "docs" / "dashboard.md").read_text("utf-8")
BLOCK = re.compile(r"^```py\n# (file:|add to) (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^python (manage\.py .*)$", re.MULTILINE)
PRINTED_MAIL = 'EMAIL_BACKEND = "django.core.mail.backends.console.EmailBackend"\n'
MODEL = """
from django.db import models


class Order(models.Model):
    email = models.EmailField()
"""


class EmptyProject:
    """What `django-admin startproject` and `startapp` leave."""

    def __init__(self, python: str, folder: Path) -> None:
        self._python, self._folder = python, folder
        self.run("-m", "django", "startproject", "shop", ".")
        self.run("manage.py", "startapp", "orders")
        (folder / "orders" / "models.py").write_text(MODEL)

    def run(self, *words: str) -> str:
        command = [self._python, *words]
        environment = {"PYTHONPATH": str(SOURCE), "PATH": "", "NO_COLOR": "1"}
        done = forks.run(command, cwd=self._folder, env=environment, timeout=120)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def write(self, how: str, name: str, text: str) -> None:
        before = (self._folder / name).read_text() if how == "add to" else ""
        (self._folder / name).write_text(before + text)


@pytest.mark.slow
@pytest.mark.parametrize("kind", django_env.kinds())
def test_a_project_that_follows_the_page_works(kind: str, tmp_path: Path) -> None:
    project = EmptyProject(django_env.python(kind), tmp_path)
    for how, name, text in BLOCK.findall(PAGE):
        project.write(how, name, text)
    if "MAILERS" not in (tmp_path / "shop" / "settings.py").read_text():  # new projects of Django 6.1 print their mail
        project.write("add to", "shop/settings.py", PRINTED_MAIL)
    migrate, worker = COMMAND.findall(PAGE)
    project.run("manage.py", "makemigrations", "orders")
    project.run(*migrate.split())
    project.run("manage.py", "test")
    project.run("manage.py", "shell", "--command", "from orders.buying import buy; buy('ada@example.org')")
    assert "To: ada@example.org" in project.run(*worker.split(), "--until-idle")
    assert "succeeded" in project.run("manage.py", "treadle", "jobs", "list")


def test_the_page_names_files_and_commands() -> None:
    assert [name for _, name, _ in BLOCK.findall(PAGE)] == [
        "shop/settings.py", "orders/tasks.py", "orders/buying.py", "shop/settings.py", "orders/tests.py",
    ]  # fmt: skip
    assert COMMAND.findall(PAGE) == ["manage.py migrate", "manage.py treadle worker"]


MOUNTED = """
import os
os.environ["DJANGO_SETTINGS_MODULE"] = "shop.settings"
from shop.asgi import application
from django.contrib.auth.models import User
from django.test import Client
from starlette.testclient import TestClient

for name, is_staff in (("ada", True), ("bob", False)):
    User.objects.create_user(name, password="x", is_staff=is_staff)
http = TestClient(application, "http://localhost", follow_redirects=False)
print("nobody", http.get("/jobs/").status_code)
print("Django's own", http.get("/admin/login/").status_code)
for name in ("ada", "bob"):
    django = Client()
    django.force_login(User.objects.get(username=name))
    answer = http.get("/jobs/", headers={"Cookie": "sessionid=" + django.cookies["sessionid"].value})
    print(name, answer.status_code, "ada · may operate" in answer.text)
"""


@pytest.mark.slow
def test_the_dashboard_is_mounted_beside_django_for_its_staff(tmp_path: Path) -> None:
    project = EmptyProject(django_env.python("here"), tmp_path)
    for how, name, text in BLOCK.findall(PAGE):
        project.write(how, name, text)
    [(how, name, text)] = BLOCK.findall(DASHBOARD)
    project.write(how, name, text)
    project.run("manage.py", "makemigrations", "orders")
    project.run("manage.py", "migrate")
    printed = project.run("-c", MOUNTED).splitlines()
    assert printed == ["nobody 401", "Django's own 200", "ada 200 True", "bob 401 False"]
