"""The contract also holds on the oldest server we promise, wherever its binaries are."""

import pytest

import provision
import stores

THERE = tuple(kind for kind in stores.SECOND if kind.removeprefix("postgres") in provision.binaries())
NOT_THERE = tuple(kind for kind in stores.SECOND if kind not in THERE)


@pytest.fixture(params=tuple(dict.fromkeys((*stores.KINDS, *THERE, *stores.DYNAMO))))
def engine_kind(request: pytest.FixtureRequest) -> str:
    return request.param


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for kind in NOT_THERE:
        terminalreporter.write_line(f"not run: conformance on {kind}, for its binaries are not on this machine")
