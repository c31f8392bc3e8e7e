"""email.send with Microsoft Graph: a draft is made, sent, and looked at before anything is done again."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.builtin.mailing import MAIL, attempted, mailer, to_graph
from tests.support.marks import any_store
from treadle import ConfigError, Job, Reason, State, Treadle
from treadle.builtin.email_send import Email, Graph
from treadle.testing import FakeClock, FakeContext, fakes
from treadle.testing.fakes import GraphServer


@pytest.fixture
def server(clock: FakeClock) -> Iterator[GraphServer]:
    with fakes.graph(clock=clock) as running:
        yield running


def ended(app: Treadle, server: GraphServer, mail: dict[str, Any] = MAIL, **options: Any) -> Job:
    return attempted(app, mailer(app, to_graph(server), **options).enqueue(Email(**mail)))


def asked(server: GraphServer) -> list[str]:
    return [f"{request.method} {request.path.rpartition('/')[2][:8]}" for request in server.requests]


def test_the_mail_is_asked_for_as_graph_wants_it(app: Treadle, server: GraphServer) -> None:
    mail = {
        "to": ["Zoë <zoe@example.org>", "bob@example.org"], "cc": "cid@example.org", "bcc": ["dan@example.org"],
        "subject": "Grüße", "text": "hi", "html": "<p>hi</p>", "reply_to": "help@example.org",
        "headers": {"X-Order": "7"},
        "sender": "Ops <ops@example.org>",
    }  # fmt: skip
    job = ended(app, server, mail)
    [sent] = server.sent
    assert job.result == {"provider": "graph", "message_id": f"<{job.id}@example.org>"}
    assert (sent["_user"], sent["subject"]) == ("ops@example.org", "Grüße")
    assert sent["body"] == {"contentType": "html", "content": "<p>hi</p>"}
    assert sent["toRecipients"] == [
        {"emailAddress": {"address": "zoe@example.org", "name": "Zoë"}},
        {"emailAddress": {"address": "bob@example.org"}},
    ]
    people = [
        [one["emailAddress"]["address"] for one in sent[name]] for name in ("ccRecipients", "bccRecipients", "replyTo")
    ]
    assert people == [["cid@example.org"], ["dan@example.org"], ["help@example.org"]]
    assert sent["from"] == {"emailAddress": {"address": "ops@example.org", "name": "Ops"}}
    assert sent["internetMessageHeaders"] == [{"name": "X-Order", "value": "7"}]
    assert sent["internetMessageId"] == f"<{job.id}@example.org>"
    attempted(app, app.tasks["email.send"].enqueue(Email(**MAIL)))
    assert server.sent[1]["body"] == {"contentType": "text", "content": "We have it."}


def test_a_token_serves_many_mails_until_it_ends_or_is_refused(
    app: Treadle, clock: FakeClock, server: GraphServer
) -> None:
    task = mailer(app, to_graph(server))
    jobs = [task.enqueue(Email(**MAIL)) for _ in range(3)]
    assert {attempted(app, job).state for job in jobs} == {State.SUCCEEDED}
    tokens = lambda: asked(server).count("POST token")  # noqa: E731
    assert tokens() == 1
    clock.advance(minutes=56)  # its end is near
    attempted(app, task.enqueue(Email(**MAIL)))
    assert tokens() == 2
    server.expire_tokens()
    assert attempted(app, task.enqueue(Email(**MAIL))).state is State.SUCCEEDED
    assert tokens() == 3


@any_store
@pytest.mark.parametrize("place", ["POST */messages", "*/send"])
@pytest.mark.parametrize("trouble", ["drop", "drop before", 500, 503, 504])
def test_a_request_without_a_clear_answer_is_looked_after_and_one_mail_leaves(
    app: Treadle, clock: FakeClock, server: GraphServer, place: str, trouble: str | int
) -> None:
    if isinstance(trouble, int):
        server.fail_next(trouble, on=place)
    else:
        server.drop_next(before="before" in trouble, on=place)
    job = ended(app, server)
    assert job.state is State.PENDING
    clock.advance(minutes=1)
    job = attempted(app, job)
    assert (job.state, len(server.sent), server.drafts) == (State.SUCCEEDED, 1, [])
    assert any(request.startswith("GET ") for request in asked(server))


def test_a_look_that_fails_is_repeated_before_anything_is_done(
    app: Treadle, clock: FakeClock, server: GraphServer
) -> None:
    server.drop_next(on="*/send")
    job = ended(app, server)
    server.fail_next(503, on="GET *")
    clock.advance(minutes=1)
    assert attempted(app, job).state is State.PENDING
    clock.advance(minutes=1)
    assert attempted(app, job).state is State.SUCCEEDED
    assert asked(server).count("POST send") == len(server.sent) == 1


def test_a_mail_that_comes_late_to_the_sent_ones_is_waited_for(
    app: Treadle, clock: FakeClock, server: GraphServer
) -> None:
    server.sent_copy_after = 90
    server.drop_next(on="*/send")
    job = ended(app, server)
    clock.advance(minutes=1)
    job = attempted(app, job)
    assert (job.state, job.error.type) == (State.PENDING, "treadle.errors.NotDelivered")
    clock.advance(minutes=1)
    assert attempted(app, job).state is State.SUCCEEDED
    assert asked(server).count("POST send") == len(server.sent) == 1


def test_a_worker_that_wakes_up_late_cannot_send_the_draft_again(app: Treadle, server: GraphServer) -> None:
    """It froze before its request, and another one has sent the draft meanwhile."""
    job = ended(app, server)
    [id] = [json.loads(memo.value_json or "") for memo in app.memos(job) if memo.name == "draft 1"]
    late = app.tasks["email.send"](FakeContext(job=job, done={"draft 1": id}), Email(**MAIL))
    assert (late, len(server.sent)) == (job.result, 1)
    assert asked(server).count("POST send") == 2


@pytest.mark.parametrize("status", [400, 404, 409])
def test_a_mail_that_left_while_it_was_sent_again_is_a_success(
    app: Treadle, clock: FakeClock, server: GraphServer, status: int
) -> None:
    """The look finds a draft. Then the frozen worker sends it, and Graph refuses the second request."""
    server.drop_next(before=True, on="*/send")
    job = ended(app, server)
    server.drop_next(on="*/send")
    clock.advance(minutes=1)
    attempted(app, job)
    server.fail_next(200, body={"isDraft": True}, on="GET *")  # as it was a moment before
    server.fail_next(status, on="*/send")
    clock.advance(minutes=1)
    job = attempted(app, job)
    assert (job.state, job.result["message_id"], len(server.sent)) == (State.SUCCEEDED, f"<{job.id}@example.org>", 1)


def test_a_draft_that_was_deleted_before_it_was_sent_is_made_anew(
    app: Treadle, clock: FakeClock, server: GraphServer
) -> None:
    """Graph has refused clearly: nobody can have sent it."""
    server.fail_next(429, on="*/send")
    job = ended(app, server)
    server.clear()
    clock.advance(minutes=1)
    job = attempted(app, job)
    assert (job.state, len(server.sent), server.drafts) == (State.SUCCEEDED, 1, [])
    assert [memo.name for memo in app.memos(job) if memo.name.startswith("draft")] == ["draft 1", "draft 2"]


def test_a_draft_that_is_deleted_each_time_is_made_anew_at_each_attempt(
    app: Treadle, clock: FakeClock, server: GraphServer
) -> None:
    server.fail_next(429, on="*/send")
    job = ended(app, server)
    server.clear()
    server.fail_next(404, on="*/send", times=2)
    server.fail_next(404, on="GET */messages/*", times=2)
    clock.advance(minutes=1)
    job = attempted(app, job)
    assert (job.state, job.error.type) == (State.PENDING, "treadle.builtin.email_graph.DraftGone")
    clock.advance(minutes=1)
    assert attempted(app, job).state is State.SUCCEEDED
    assert len(server.sent) == 1


def test_a_draft_that_is_gone_while_a_frozen_worker_may_have_sent_it_is_not_made_anew(
    app: Treadle, clock: FakeClock, server: GraphServer
) -> None:
    server.drop_next(before=True, on="*/send")
    job = ended(app, server)
    server.fail_next(404, on="*/send")
    server.fail_next(200, body={"isDraft": True}, on="GET *")
    server.fail_next(404, on="GET *")
    clock.advance(minutes=1)
    job = attempted(app, job)
    assert (job.state, job.error.type) == (State.PENDING, "treadle.errors.Ambiguous")
    server.clear()
    clock.advance(minutes=1)
    job = attempted(app, job)
    assert (job.state, job.error.type, server.drafts) == (State.FAILED, "treadle.errors.Parked", [])


UNREADABLE = [b"", b"<html>login</html>", [], b'{"isDra', b"[" * 200_000, {}, {"isDraft": None}, {"isDraft": "false"}]


@pytest.mark.parametrize("body", UNREADABLE, ids=lambda body: repr(body)[:20])
@pytest.mark.parametrize("status", [200, 204])
def test_a_look_that_cannot_be_read_is_repeated(
    app: Treadle, clock: FakeClock, server: GraphServer, body: Any, status: int
) -> None:
    server.drop_next(before=True, on="*/send")
    job = ended(app, server)
    server.fail_next(status, body=body, on="GET *")
    clock.advance(minutes=1)
    job = attempted(app, job)
    assert (job.state, server.sent) == (State.PENDING, [])
    assert "no answer that can be read" in job.error.message
    clock.advance(minutes=1)
    assert (attempted(app, job).state, len(server.sent)) == (State.SUCCEEDED, 1)


@pytest.mark.parametrize("body", [b"", {"value": None}, {"value": [7]}, {"value": [{"id": 7}]}], ids=repr)
def test_a_search_for_the_draft_that_cannot_be_read_is_repeated(
    app: Treadle, clock: FakeClock, server: GraphServer, body: Any
) -> None:
    server.drop_next(on="POST */messages")
    job = ended(app, server)
    server.fail_next(200, body=body, on="GET *")
    clock.advance(minutes=1)
    assert "no answer that can be read" in attempted(app, job).error.message
    clock.advance(minutes=1)
    assert (attempted(app, job).state, len(server.sent), server.drafts) == (State.SUCCEEDED, 1, [])


TOKEN = {"access_token": "t", "expires_in": 3599}


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (400, {"error": "x", "error_codes": None}, "no token: 400 x: look at the tenant"),
        (400, {"error": "x", "error_codes": {"a": 1}}, "no token: 400 x: look at the tenant"),
        (400, b"[" * 200_000, "no token: 400 : look at the tenant"),
        (
            200,
            {**TOKEN, "access_token": "t\n\u20ac"},
            "answered 200 without one that can be read; is it Microsoft's login?",
        ),
        (200, {**TOKEN, "access_token": None}, "answered 200 without one that can be read; is it Microsoft's login?"),
        (200, {**TOKEN, "expires_in": "soon"}, "answered 200 without one that can be read; is it Microsoft's login?"),
        (200, {**TOKEN, "expires_in": 1e999}, "answered 200 without one that can be read; is it Microsoft's login?"),
        (200, b"<html>", "answered 200 without one that can be read; is it Microsoft's login?"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_an_odd_answer_instead_of_a_token_is_said_clearly(
    app: Treadle, server: GraphServer, status: int, body: Any, words: str
) -> None:
    server.fail_next(status, body=body, on="*/token")
    job = ended(app, server)
    assert job.state is (State.FAILED if status == 400 else State.PENDING)
    assert words in job.error.message


@pytest.mark.parametrize("lifetime", ["3599", 10**18, "9" * 5000, 0, -5])
def test_any_lifetime_of_a_token_will_do(app: Treadle, server: GraphServer, lifetime: object) -> None:
    server.fail_next(200, body={"access_token": "refused", "expires_in": lifetime}, on="*/token")
    assert ended(app, server).state is State.SUCCEEDED
    assert asked(server).count("POST token") == 2  # the first one was refused


def test_a_token_that_was_replaced_is_hidden_too(app: Treadle, server: GraphServer) -> None:
    task = mailer(app, to_graph(server))
    attempted(app, task.enqueue(Email(**MAIL)))
    [old] = server._tokens
    server.expire_tokens()
    attempted(app, task.enqueue(Email(**MAIL)))
    server.fail_next(400, error=f"was {old}, is {next(iter(server._tokens))}", on="POST */messages")
    assert "was ***, is ***:" in attempted(app, task.enqueue(Email(**MAIL))).error.message


def test_a_mail_that_may_have_been_sent_stays_in_its_mailbox(
    make_app: Any, clock: FakeClock, server: GraphServer
) -> None:
    first, second = make_app(), make_app()
    server.drop_next(on="*/send")
    job = ended(first, server)
    mailer(second, to_graph(server, sender="office@example.org"))
    clock.advance(minutes=1)
    job = attempted(second, job)
    assert (job.state, [mail["_user"] for mail in server.sent]) == (State.SUCCEEDED, ["shop@example.org"])


ENDS = {"park": (State.FAILED, 1, None), "send": (State.SUCCEEDED, 2, None), "skip": (State.SUCCEEDED, 1, True)}


@pytest.mark.parametrize("policy", ENDS)
def test_a_draft_that_somebody_deleted_is_settled_on_the_last_attempt_as_the_policy_says(
    app: Treadle, clock: FakeClock, server: GraphServer, policy: str
) -> None:
    server.sent_copy_after = 3600
    server.drop_next(on="*/send")
    job = ended(app, server, on_ambiguous=policy)
    for _ in range(2):
        assert job.state is State.PENDING
        clock.advance(minutes=1)
        job = attempted(app, job)
    state, mails, unconfirmed = ENDS[policy]
    assert (job.state, len(server.sent)) == (state, mails)
    if policy == "park":
        assert (job.error.type, job.reason) == ("treadle.errors.Parked", Reason.PERMANENT)
        assert "the draft is gone" in job.error.message
    else:
        assert job.result.get("unconfirmed") is unconfirmed


@pytest.mark.parametrize("place", ["POST */messages", "*/send"])
@pytest.mark.parametrize("status", [400, 403, 404, 413])
def test_a_4xx_fails_the_job_at_once(app: Treadle, server: GraphServer, status: int, place: str) -> None:
    server.fail_next(status, on=place)
    job = ended(app, server)
    assert (job.state, job.reason, job.attempt) == (State.FAILED, Reason.PERMANENT, 1)
    assert f"Graph answered {status}" in job.error.message
    assert ("Mail.Send" in job.error.message) == (status == 403)
    assert server.sent == []


def test_a_mailbox_that_is_not_there_is_named(app: Treadle, server: GraphServer) -> None:
    server.mailboxes = {"other@example.org"}
    job = ended(app, server)
    assert "The requested user 'shop@example.org' is invalid" in job.error.message


@pytest.mark.parametrize("place", ["POST */messages", "*/send", "*/token"])
def test_a_429_waits_as_long_as_graph_asks_for(app: Treadle, clock: FakeClock, server: GraphServer, place: str) -> None:
    server.fail_next(429, headers={"Retry-After": "500"}, on=place)
    job = ended(app, server)
    clock.advance(seconds=499)
    assert attempted(app, job).state is State.PENDING
    clock.advance(seconds=1)
    assert attempted(app, job).state is State.SUCCEEDED
    assert len(server.sent) == 1


@pytest.mark.parametrize("wrong", ["tenant", "client_id", "client_secret"])
def test_wrong_credentials_name_the_settings_and_are_not_repeated(
    app: Treadle, server: GraphServer, wrong: str
) -> None:
    task = mailer(app, to_graph(server, **{wrong: "canary"}))
    job = attempted(app, task.enqueue(Email(**MAIL)))
    assert (job.reason, job.attempt) == (Reason.PERMANENT, 1)
    assert "look at the tenant, client_id and client_secret of Graph(...)" in job.error.message
    assert "AADSTS" in job.error.message
    assert "canary" not in repr(job.error)


@pytest.mark.parametrize("trouble", ["drop", "away", 500])
def test_a_token_that_cannot_be_had_is_asked_for_again_and_nothing_is_in_doubt(
    app: Treadle, clock: FakeClock, server: GraphServer, trouble: str | int
) -> None:
    task = mailer(app, to_graph(server))
    if isinstance(trouble, int):
        server.fail_next(trouble, on="*/token")
    elif trouble == "drop":
        server.drop_next(on="*/token")
    else:
        server.close()
    job = attempted(app, task.enqueue(Email(**MAIL)))
    assert job.state is State.PENDING
    if trouble == "away":
        server.start()
    clock.advance(minutes=1)
    assert attempted(app, job).state is State.SUCCEEDED
    assert [request for request in asked(server) if request.startswith("GET")] == []


@pytest.mark.parametrize(
    "headers", [{"List-Unsubscribe": "<https://example.org>"}, {f"X-{number}": "v" for number in range(6)}]
)
def test_headers_that_graph_does_not_take_are_refused_when_the_job_is_enqueued(
    app: Treadle, server: GraphServer, headers: dict[str, str]
) -> None:
    task = mailer(app, to_graph(server))
    with pytest.raises(ValueError, match=r"headers: .*Graph"):
        task.enqueue(Email(**{**MAIL, "headers": headers}))
    assert app.count()[State.PENDING] == 0


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"tenant": ""}, "tenant"), ({"client_id": "a b"}, "client_id"),
        ({"client_secret": "can\nary"}, "client_secret"),
        ({"sender": "nobody"}, "sender"), ({"url": "graph"}, "url"), ({"login": "ftp://x"}, "login"),
        ({"timeout": -1}, "timeout"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_refused_by_its_name(given: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=rf"^Graph: {field}: "):
        Graph(**{"tenant": "t", "client_id": "c", "client_secret": "s", **given})
