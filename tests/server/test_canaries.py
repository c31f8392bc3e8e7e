"""Nothing that the program shows holds a secret of a payload."""

from pathlib import Path

import pytest

from tests.server.canaries import Canaries
from tests.support.sizes import size

NUMBER = size(50, long=1_000)


def test_secrets_are_shown_nowhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    canaries = Canaries(NUMBER)
    assert canaries.search() == []
    assert len(canaries.made) >= NUMBER
    caplog.clear()  # the errors of the handlers are as wanted
