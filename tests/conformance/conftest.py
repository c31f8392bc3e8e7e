"""The contract also holds on the oldest server we promise, wherever its binaries are."""

import pytest

import stores

THERE = tuple(kind for kind in stores.SECOND if kind not in stores.missing())


@pytest.fixture(params=tuple(dict.fromkeys((*stores.KINDS, *THERE, *stores.DYNAMO))))
def engine_kind(request: pytest.FixtureRequest) -> str:
    return request.param


# On the servers for a second opinion, but for --all-servers.
SAMPLE = ("test_no_job_is_lost.py", "test_final_is_final.py", "test_audit.py")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A second opinion takes minutes: a sample of it in every run, all of it on request."""
    if config.getoption("--all-servers"):
        return
    left = [item for item in items if _kind(item) in stores.SLOW and item.path.name not in SAMPLE]
    if left:
        items[:] = [item for item in items if item not in set(left)]
        config.hook.pytest_deselected(items=left)


def _kind(item: pytest.Item) -> object:
    return getattr(item, "callspec", None) and item.callspec.params.get("engine_kind")  # type: ignore[attr-defined]
