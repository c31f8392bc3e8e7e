"""The Django integration: the cases of django_project, in Django's own test runner, on each Django and database."""

import re

import pytest

from tests.integrations.django_projects import Project
from tests.support import django_env
from treadle.integrations.django.management.commands.treadle import _ours


@pytest.mark.slow
def test_the_cases_of_the_project_pass(project: Project) -> None:
    left_out = [] if project.database else ["--exclude-tag", "own_connections"]  # nobody else reaches such a database
    said = project.manage("test", "cases", "--pattern", "*_cases.py", "--noinput", *left_out)
    ran = re.search(r"Ran (\d+) tests in", said)
    assert ran is not None, said
    assert int(ran[1]) > 60


def test_the_options_of_manage_itself_are_not_passed_on() -> None:
    words = ["worker", "--settings", "a.b", "--queue", "mail", "--pythonpath=x", "--until-idle"]
    assert _ours(words) == ["worker", "--queue", "mail", "--until-idle"]


def test_the_versions_of_a_lock_are_read_without_its_hashes() -> None:
    lock = (
        "a-b==1.2 ; python_version < '3' \\\n    --hash=sha256:00 \\\n    # via c\nc[x]==3 \\\n    --hash=sha256:11\n"
    )
    assert django_env.without_hashes(lock) == "a-b==1.2 ; python_version < '3' \nc[x]==3 "
