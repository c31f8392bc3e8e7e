"""Each case on each store; on the servers for a second opinion a sample of them, or with --all-servers every one."""

import pytest

from tests.support import stores

THERE = tuple(kind for kind in stores.SLOW if kind not in stores.missing())
SAMPLE = ("test_final_is_final.py",)


@pytest.fixture
def engine_kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.hookimpl(tryfirst=True)  # the store comes first in a test's name
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Not params of the fixture: five thousand tests would be made in every run, only to be left out."""
    named = (mark.args[0] for mark in metafunc.definition.iter_markers("parametrize"))
    if "engine_kind" in metafunc.fixturenames and "engine_kind" not in named:
        again = metafunc.config.getoption("--all-servers") or metafunc.definition.path.name in SAMPLE
        metafunc.parametrize("engine_kind", [*stores.KINDS, *(THERE if again else ())], indirect=True)
