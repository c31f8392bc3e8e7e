"""What is wrong with a server, its address or a token is said in one line; a token goes nowhere that it should not."""

import json
import socket
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import pytest

from tests.client.conftest import Call, Served
from treadle import ConfigError, EngineError, EngineUnavailable, InvalidInput, InvalidJob, NotPossible
from treadle.client import RemoteTreadle
from treadle.client.address import address_of

PROBLEM = "application/problem+json"
ABOUT = {
    "version": "0.1.0",
    "now": "2026-11-18T00:00:00+00:00",
    "profile": {"states": {}, "fields": None, "empty": None},
}
TOKEN = "treadle_canary"


class Reply(NamedTuple):
    """What a server answers; a status of 0 ends the connection instead."""

    status: int = 200
    body: Any = ABOUT
    kind: str = "application/json"
    headers: dict[str, str] = {}  # noqa: RUF012 - never changed


class Scripted(ThreadingHTTPServer):
    """A real server that answers what it was told, one request after the other, and then the last answer again."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.replies: list[Reply] = []
        self.requests: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_port}"

    def answers(self, *replies: Reply) -> RemoteTreadle:
        self.replies, self.requests = list(replies), []
        return RemoteTreadle(self.url, TOKEN, timeout=5)


class _Handler(BaseHTTPRequestHandler):
    def do(self) -> None:
        server: Any = self.server
        server.requests.append(f"{self.command} {self.path}")
        self.rfile.read(int(self.headers.get("content-length", 0)))
        reply: Reply = server.replies.pop(0) if len(server.replies) > 1 else server.replies[0]
        if reply.status == 0:
            self.close_connection = True
            return
        data = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
        self.send_response(reply.status)
        for name, value in {"Content-Type": reply.kind, "Content-Length": str(len(data)), **reply.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PATCH = do_DELETE = do  # noqa: N815 - as the standard library calls them

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def scripted() -> Iterator[Scripted]:
    with Scripted() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def problem(status: int, detail: str, **more: Any) -> Reply:
    return Reply(status, {"type": "about:blank", "status": status, "detail": detail, **more}, PROBLEM)


ANSWERS = [
    (Reply(200, b"<html>", "text/html"), ConfigError, "is not a treadle: it answers 200 with text/html"),
    (Reply(200, [1], "application/json"), ConfigError, "is not a treadle"),
    (Reply(200, {"version": "9"}), EngineError, "cannot be read (KeyError: 'profile')"),
    (Reply(404, {"detail": "Not Found"}), ConfigError, "is not a treadle: it answers 404"),
    (problem(404, "there is nothing at this address"), NotPossible, "it is older than this treadle"),
    (Reply(301, b"", "text/html", {"Location": "https://x.example"}), ConfigError, "leads on to 'https://x.example'"),
    (problem(401, "send a token"), ConfigError, "token: http://"),
    (problem(403, "this needs the scope read", scope="read"), NotPossible, "this needs the scope read"),
    (problem(421, "this server does not answer to that Host"), ConfigError, "does not answer to that Host"),
    (problem(500, "an error of the server; its log has more under 12ab"), EngineError, "more under 12ab"),
    (problem(503, "no migrate", error="SchemaError"), EngineError, "no migrate"),
    (Reply(502, b"bad gateway", "text/html"), EngineUnavailable, "answers 502"),
    (Reply(500, b"oops", "text/plain"), EngineError, "answers 500"),
    (Reply(0), EngineUnavailable, "gave no answer"),
    (problem(400, "half \x1b", error="NoSuchError"), ValueError, "half"),
]


@pytest.mark.parametrize(("reply", "kind", "words"), ANSWERS)
def test_an_answer_that_is_none_is_said_in_words(
    scripted: Scripted, reply: Reply, kind: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treadle.client.transport.WAITS", (0.01,))
    with pytest.raises(kind) as error:
        scripted.answers(reply).open()
    assert words in str(error.value)
    assert TOKEN not in str(error.value)


def test_a_server_from_before_labels_were_counted_is_understood(scripted: Scripted) -> None:
    old = {"counts": {"pending": 2}, "total": 2, "exact": True, "estimates": []}
    assert scripted.answers(Reply(body=old)).counts() == {**old, "labels": {}}


def test_an_answer_that_is_too_large_says_so(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.client.transport.LARGEST_ANSWER", 10)
    with pytest.raises(EngineError, match="more than 10 bytes; ask for fewer with --limit"):
        scripted.answers(Reply()).find()
    assert len(scripted.requests) == 1


def test_what_only_reads_is_asked_again_and_waits_as_long_as_it_should(scripted: Scripted) -> None:
    slow_down = problem(429, "too many requests; try again in 0 s")._replace(headers={"Retry-After": "0"})
    there = scripted.answers(slow_down, problem(503, "the server is stopping"), Reply())
    there.open()
    assert scripted.requests == ["GET /api/v1/about"] * 3
    never = scripted.answers(problem(429, "too many requests")._replace(headers={"Retry-After": "3600"}))
    with pytest.raises(EngineUnavailable, match="too many requests"):
        never.open()
    assert len(scripted.requests) == 1


def test_an_enqueue_is_sent_again_with_the_same_id_and_another_change_is_not(scripted: Scripted) -> None:
    told = {"job": {"id": "0199e0c5-6f3b-7d41-9c1e-2b7f5f0a8c11"}}
    assert scripted.answers(Reply(0), Reply(201, told)).enqueue("greet").id == told["job"]["id"]
    assert scripted.requests == ["POST /api/v1/jobs"] * 2
    with pytest.raises(EngineError, match="it may have been done all the same"):
        scripted.answers(Reply(0)).cancel(told["job"]["id"])
    assert len(scripted.requests) == 1
    with pytest.raises(EngineUnavailable, match="too many requests"):
        scripted.answers(problem(429, "too many requests")._replace(headers={"Retry-After": "0"})).pause(
            everything=True
        )
    assert len(scripted.requests) == 1


def test_a_server_that_is_down_or_speaks_something_else_is_named(call: Call) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"

        def greet() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"220 mail.example ESMTP\r\n")

        thread = threading.Thread(target=greet)
        thread.start()
        done = call("jobs", "list", "--server", url, "--token", TOKEN)
        thread.join()
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith(f"error: server: {url} does not speak HTTP")
    done = call("jobs", "list", "--server", url, "--token", TOKEN)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(f"error: {url} does not answer (Connection refused)")


def test_certificates_and_names_are_checked() -> None:
    context = RemoteTreadle("https://jobs.example.com", TOKEN)._http._tls
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)


URLS = [
    ("jobs.example.com", "must begin with https://"),
    ("ftp://jobs.example.com", "must begin with https://"),
    ("https://", "must begin with https://"),
    ("http://jobs.example.com", "would send the token in the clear"),
    ("http://10.0.0.1:8787", "would send the token in the clear"),
    ("http://0.0.0.0:8787", "would send the token in the clear"),
    ("http://127.0.0.1.example.com", "would send the token in the clear"),
    ("http://localhost.example.com", "would send the token in the clear"),
    ("https://me:pass@jobs.example.com", "leave out user and password"),
    ("https://jobs.example.com:99999", "is not a URL"),
    ("https://jobs.example.com:0", "must be a host, a port"),
    ("https://[::1", "is not a URL"),
    ("https://jobs.example.com/?a=b", "must be a host, a port"),
    ("https://jobs example.com", "is not a URL"),
    ("https://jobs.example.com\r\nX: y", "is not a URL"),
    ("", "is not a URL"),
    ("https://" + "x" * 3000, "is not a URL"),
]


@pytest.mark.parametrize(("url", "words"), URLS)
def test_an_address_that_cannot_be_used_is_refused_before_anything_is_sent(url: str, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        RemoteTreadle(url, TOKEN)
    assert words in str(error.value)
    assert "pass" not in str(error.value).replace("password", "")


def test_an_address_is_read_as_people_write_it() -> None:
    for text, url in {
        "https://jobs.example.com": "https://jobs.example.com",
        "HTTPS://Jobs.Example.com:443/": "https://jobs.example.com",
        "https://site.example/jobs/api/v1/": "https://site.example/jobs",
        "http://localhost:8787": "http://localhost:8787",
        "http://[::1]:80": "http://[::1]",
    }.items():
        assert address_of(text).url == url
    assert address_of("http://10.0.0.1", insecure=True).url == "http://10.0.0.1"


@pytest.mark.parametrize("token", ["", None, "two words", "treadle_\r\nX: y", "Zoë", "x" * 5000])
def test_a_token_that_no_request_can_hold_is_refused_and_not_shown(token: str | None) -> None:
    with pytest.raises(ConfigError, match="token: ") as error:
        RemoteTreadle("https://jobs.example.com", token)
    assert not token or token not in str(error.value)


def test_neither_the_object_nor_the_settings_show_the_token(
    there: Served, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert TOKEN not in repr(RemoteTreadle("https://jobs.example.com", TOKEN))
    monkeypatch.setenv("TREADLE_TOKEN", TOKEN)
    monkeypatch.setenv("TREADLE_SERVER", "https://jobs.example.com")
    for words in (["show"], ["show", "--json"], ["get", "token"], ["get", "token", "--json"], ["check"]):
        done = call("config", *words)
        assert done.code == 0
        assert TOKEN not in done.out + done.err
    done = call("config", "set", "token", TOKEN + "2")
    assert done.code == 0
    assert TOKEN not in done.out + done.err


LINES = [
    ("jobs list --server {url} --url sqlite:///x.db", "--server and --url cannot be given together"),
    ("jobs list --server {url} --app x:app", "--server and --app cannot be given together"),
    ("jobs list --server", "--server: its value is missing"),
    ("jobs list --server --json", "--server: its value is missing"),
    ("jobs list --server {url} --server {url}", "--server was given twice"),
    ("jobs list --token x", "--token and --insecure are about a server"),
    ("jobs list --server {url}", "token: which one? Set TREADLE_TOKEN"),
    ("jobs list --server {url} --token treadle_wrong", "does not know it"),
    ("tail --server {url} --token x", "--server: this command works on the store itself"),
    ("audit seal --server {url} --token x", "--server: this command works on the store itself"),
    *(
        (f"{command} --server {{url}} --token x", f"treadle {command.split()[0]} works on this machine")
        for command in ("worker", "serve", "migrate", "prune", "bench drain", "demo", "init", "config show")
    ),
]


@pytest.mark.parametrize(("line", "words"), LINES)
def test_a_line_that_means_two_things_is_refused(there: Served, call: Call, line: str, words: str) -> None:
    done = call(*line.format(url=there.url).split())
    assert (done.code, done.out) == (2, "")
    assert words in done.err
    assert done.err.count("\n") == 1


def test_a_server_of_the_settings_is_asked_unless_the_line_names_a_store(
    there: Served, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TREADLE_SERVER", there.url)
    monkeypatch.setenv("TREADLE_TOKEN", there.token)
    assert len(call("jobs", "list", "--json").json["jobs"]) == len(there.app.find().jobs)
    assert "there is no" in call("jobs", "list", "--url", "sqlite:///nowhere.db").err
    done = call("prune")
    assert done.code == 2
    assert "the settings name one, and this command works on the store itself" in done.err


def test_a_token_that_may_only_enqueue_is_told_the_id(there: Served, call: Call) -> None:
    token = there.app.tokens.create("ci", scopes=["enqueue"]).secret
    words = ("enqueue", "greet", '{"name": "Ada"}', "--run-after", "30d", "--server", there.url, "--token", token)
    stored = call(*words, "--json").json
    assert there.app.get(stored["id"]).payload == {"name": "Ada"}
    assert [*stored] == ["id"]
    assert call(*words).out.endswith("  stored\n")
    assert "this needs the scope read" in call("jobs", "list", "--server", there.url, "--token", token).err


def test_a_token_that_is_bound_to_queues_finds_nothing_where_there_is_nothing(there: Served, call: Call) -> None:
    token = there.app.tokens.create("mail", scopes=["operate"], queues=["post"]).secret
    for line in ("jobs list --task grete", "jobs list --queue post", "jobs retry --queue post --state failed --yes"):
        done = call(*line.split(), "--server", there.url, "--token", token)
        assert (done.code, done.err) == (0, ""), line
    done = call("schedules", "show", "hourly", "--server", there.url, "--token", token)
    assert (done.code, "there is no schedule 'hourly'" in done.err) == (1, True)


def test_values_are_sent_as_a_store_takes_them_or_refused_by_their_name(there: Served) -> None:
    remote = RemoteTreadle(there.url, there.token)
    moment = datetime(2030, 1, 31, tzinfo=UTC)
    stored = remote.enqueue("greet", {"name": moment}, run_after="30d")
    assert there.app.get(stored.id).payload == {"name": "2030-01-31T00:00:00Z"}
    with pytest.raises(InvalidJob, match="payload: cannot be JSON"):
        remote.schedules.create("new", "greet", {"name": object()}, every="1h")
    with pytest.raises(InvalidInput, match="lane: cannot be sent"):
        remote.edit(stored.id, lane=object())
    assert remote.delete_many(ids=(one for one in [stored.id])).done == 1
