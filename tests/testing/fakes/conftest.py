"""A client for the stand-ins' tests: plain HTTP, no vendor's library."""

from collections.abc import Iterator

import httpx2
import pytest


@pytest.fixture
def http() -> Iterator[httpx2.Client]:
    with httpx2.Client(timeout=5) as client:
        yield client
