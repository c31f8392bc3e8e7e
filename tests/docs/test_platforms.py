"""What README says about Windows is so: a worker does not start where event loops have no signal handlers."""

import asyncio
from pathlib import Path

import pytest

from treadle import ConfigError, Treadle

ROOT = Path(__file__).resolve().parent.parent.parent


class LoopAsOnWindows(asyncio.SelectorEventLoop):
    """Windows' event loops inherit this method as it is, and it raises."""

    add_signal_handler = asyncio.AbstractEventLoop.add_signal_handler


def test_a_worker_does_not_start_where_event_loops_have_no_signal_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio, "new_event_loop", LoopAsOnWindows)
    with pytest.raises(ConfigError, match="no signal handlers on this system"):
        Treadle("sqlite:///:memory:").run_worker(until_idle=True)


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md", "docs/production.md"])
def test_a_page_for_beginners_and_operators_says_what_is_true_on_windows(page: str) -> None:
    words = " ".join((ROOT / page).read_text("utf-8").split())
    assert "signal handlers there" in words
    assert "WSL or a container" in words
