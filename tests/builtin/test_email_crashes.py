"""email.send in a worker that is killed after the service has taken the mail, and before that is written down."""

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.builtin.email_process import transport
from tests.builtin.mailing import MAIL
from tests.support import forks, processes
from tests.support.marks import any_store
from tests.support.workbench import QUICK, ended, working
from treadle import Job, Retry, State, Treadle
from treadle.builtin import email_send
from treadle.builtin.email_send import Email
from treadle.engines.postgres import notify
from treadle.testing import fakes

pytestmark = pytest.mark.slow

LEASE = 0.6
AT_ONCE = Retry(max_attempts=5, base=0, cap=0, jitter=0)
ENDS = {
    "park": (State.FAILED, 1),
    "send": (State.SUCCEEDED, 2),
    "skip": (State.SUCCEEDED, 1),
}


@pytest.fixture
def app(store_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Treadle]:
    """By the real clock, as the process has it."""
    monkeypatch.setattr(notify, "STOP_INTERVAL", 0.02)
    with Treadle(store_url) as opened:
        yield opened


@pytest.fixture
def killed_over(app: Treadle, store_url: str) -> Iterator[Callable[..., Job]]:
    """Enqueue a mail, kill the worker that sends it once `seen(job)` holds; the job as the next worker leaves it."""

    def kill(kind: str, server: Any, policy: str, seen: Callable[[Job], object]) -> Job:
        words = store_url, kind, server.url, policy, json.dumps({**QUICK, "lease": LEASE})
        task = email_send.register(app, transport(kind, server.url), on_ambiguous=policy, retry=AT_ONCE)  # type: ignore[arg-type]
        job = task.enqueue(Email(**MAIL))
        with worker(*words) as process:
            server.wait_until(lambda: bool(seen(job)))
            process.kill()
        with working(app, lease=LEASE):
            [job] = ended(app, job)
        return job

    return kill


@contextmanager
def worker(*words: str) -> Iterator[subprocess.Popen]:
    command = processes.module("tests.builtin.email_process", *words)
    with forks.Popen(command, env=processes.environment()) as process:
        try:
            yield process
        finally:
            process.kill()


@any_store
@pytest.mark.parametrize("policy", ENDS)
def test_over_smtp_the_policy_decides(killed_over: Callable[..., Job], policy: str) -> None:
    with fakes.smtp() as server:
        server.delay_next(60)
        job = killed_over("smtp", server, policy, lambda _: server.sent)
        assert (job.state, len(server.sent)) == ENDS[policy]
        if policy == "park":
            assert "nobody knows whether it has happened" in job.error.message
        else:
            assert job.result["message_id"] == f"<{job.id}@example.org>" == server.sent[0].message["Message-ID"]


def test_over_smtp_a_mail_is_in_doubt_from_the_first_word_to_the_server(
    app: Treadle, killed_over: Callable[..., Job]
) -> None:
    """The receipt says that it began, and no more: a person decides about a mail that was not sent."""
    with fakes.smtp() as server:
        server.delay_next(60, on="CONNECT")
        job = killed_over("smtp", server, "park", app.memos)
        assert (job.state, job.error.type, server.sent) == (State.FAILED, "treadle.errors.Parked", [])


@any_store
def test_resend_sends_one_mail_on_every_store(killed_over: Callable[..., Job]) -> None:
    with fakes.resend() as server:
        server.delay_next(60)
        job = killed_over("resend", server, "park", lambda _: server.sent)
        assert (job.state, len(server.sent)) == (State.SUCCEEDED, 1)
        assert job.result == {"provider": "resend", "message_id": server.sent[0]["id"]}


@pytest.mark.parametrize("before", [False, True], ids=["taken", "not taken"])
@pytest.mark.parametrize("policy", ["send", "skip"])
def test_resend_sends_one_mail_whatever_the_policy(killed_over: Callable[..., Job], policy: str, before: bool) -> None:
    with fakes.resend() as server:
        server.delay_next(60, before=before)
        job = killed_over("resend", server, policy, lambda _: server.requests)
        assert (job.state, len(server.sent)) == (State.SUCCEEDED, 1)


@any_store
@pytest.mark.parametrize("place", ["POST */messages", "*/send"])
def test_graph_sends_one_mail_on_every_store(killed_over: Callable[..., Job], place: str) -> None:
    with fakes.graph() as server:
        server.delay_next(60, on=place)
        seen = (lambda _: server.sent) if place == "*/send" else (lambda _: server.drafts)
        job = killed_over("graph", server, "park", seen)
        assert (job.state, len(server.sent), server.drafts) == (State.SUCCEEDED, 1, [])
        assert job.result == {"provider": "graph", "message_id": server.sent[0]["internetMessageId"]}


@pytest.mark.parametrize("before", [False, True], ids=["taken", "not taken"])
@pytest.mark.parametrize("policy", ["send", "skip"])
def test_graph_sends_one_mail_whatever_the_policy(killed_over: Callable[..., Job], policy: str, before: bool) -> None:
    with fakes.graph() as server:
        server.delay_next(60, before=before, on="*/send")
        asked: Callable[[Job], bool] = lambda _: any(one.path.endswith("/send") for one in server.requests)  # noqa: E731
        job = killed_over("graph", server, policy, (lambda _: server.sent) if not before else asked)
        assert (job.state, len(server.sent), server.drafts) == (State.SUCCEEDED, 1, [])
