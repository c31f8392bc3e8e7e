"""The contract also holds on the oldest server we promise, wherever its binaries are."""

import pytest

import provision
import stores

THERE = tuple(kind for kind in stores.SECOND if kind.removeprefix("postgres") in provision.binaries())
NOT_THERE = tuple(kind for kind in stores.SECOND if kind not in THERE)


@pytest.fixture(params=tuple(dict.fromkeys((*stores.KINDS, *THERE, *stores.DYNAMO))))
def engine_kind(request: pytest.FixtureRequest) -> str:
    return request.param


SAMPLE = ("test_no_job_is_lost.py", "test_final_is_final.py", "test_audit.py")  # on slow servers, but for --all-servers
SLOW = tuple(kind for kind in stores.DYNAMO if kind not in stores.KINDS)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A second opinion on DynamoDB takes minutes: a sample of it in every run, all of it on request."""
    if config.getoption("--all-servers"):
        return
    left = [item for item in items if _kind(item) in SLOW and item.path.name not in SAMPLE]
    if left:
        items[:] = [item for item in items if item not in set(left)]
        config.hook.pytest_deselected(items=left)
        config.stash[LEFT] = len(left)


def _kind(item: pytest.Item) -> object:
    return getattr(item, "callspec", None) and item.callspec.params.get("engine_kind")  # type: ignore[attr-defined]


LEFT = pytest.StashKey[int]()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if LEFT in config.stash:
        terminalreporter.write_line(
            f"not run: {config.stash[LEFT]} conformance cases on {', '.join(SLOW)}; "
            "run python3 dev.py test tests/conformance --all-servers"
        )
    for kind in NOT_THERE:
        terminalreporter.write_line(f"not run: conformance on {kind}, for its binaries are not on this machine")
