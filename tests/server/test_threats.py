"""The rows of the threat table in docs/security.md that no other file shows."""

import asyncio
import contextlib
import re
import resource
import socket
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.server.conftest import API, NO_LIMIT, Client, with_tasks
from tests.server.raw import Raw, check
from tests.support.marks import any_store
from treadle import Treadle
from treadle.model import new_id
from treadle.server import asgi, run
from treadle.server.api import Server
from treadle.testing import run_until_idle

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "treadle"
PAGE = (ROOT / "docs" / "security.md").read_text("utf-8")


@cache
def sources() -> dict[str, str]:
    """The text of every module, by its path."""
    return {path.relative_to(SOURCE).as_posix(): path.read_text("utf-8") for path in SOURCE.rglob("*.py")}


def calling(name: str) -> list[str]:
    """The modules in which a function of this name is called."""
    return sorted(path for path, text in sources().items() if re.search(rf"(?<!def )\b{name}\(", text))


def test_every_threat_of_the_table_is_held_or_named_as_open() -> None:
    """S1 to S22: a row with its tests, or a line below `Not built`."""
    table, _, missing = PAGE.partition("## Not built")
    rows = {int(number) for number in re.findall(r"^\| S(\d+) \|", table, re.MULTILINE)}
    assert rows | {int(number) for number in re.findall(r"\(S(\d+)\)", missing)} == set(range(1, 23))
    for file in re.findall(r"`(test_\w+\.py)`", table):
        assert list((ROOT / "tests").rglob(file)), file


# ------------------------------------------------------------------------------------------- S3: timing


def test_one_function_compares_all_secrets() -> None:
    assert calling("compare_digest") == ["app/tokens.py"]
    assert calling("same") == ["app/tokens.py", "server/auth.py", "server/confirm.py"]


# ------------------------------------------------------------------------- S5: what a browser makes of it

SCRIPTS = [
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "'\"><svg/onload=alert(1)>", "javascript:alert(1)",
    "</title><script>x</script>", "{{7*7}}", "${7*7}", "<!--", "]]>", "\u2028alert(1)", "data:text/html,<script>",
    "<a href='javascript:x'>", "&lt;script&gt;", "<iframe srcdoc=x>", "\\u003cscript>",
]  # fmt: skip


def test_no_answer_is_a_page(app: Treadle, admin: Client) -> None:
    """Whatever is stored, every answer is said to be JSON or text, and browsers are told not to guess."""
    for text in SCRIPTS:
        name = text.replace("\u2028", "")
        job = admin.post("/jobs", {"task": "whatever", "payload": {text: text}, "key": name, "lane": name}, 201)["job"]
        admin.post("/schedules", {"name": name, "task": "whatever", "payload": text, "every": "1h"}, 201)
        admin.post(f"/jobs/{job['id']}/cancel", {"reason": text})
        for path in (f"/jobs/{job['id']}", "/jobs", "/schedules", "/audit", f"/jobs/{quote(text)}", "//metrics"):
            answer = admin.ask("GET", path)
            assert not answer.headers["content-type"].startswith(("text/html", "image", "application/xhtml")), path
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert "script-src" not in answer.headers["content-security-policy"]
            assert "default-src 'none'" in answer.headers["content-security-policy"]


# --------------------------------------------------------------------------------- S7: hostile filters

INJECTIONS = [
    "' or '1'='1", "'; drop table treadle_jobs; --", "\" or 1=1 --", "') or ('a'='a", "1; select pg_sleep(5)", "%' --",
    "' union select hash from treadle_tokens --", "\\'; --", "$$; drop schema treadle; $$", "*/ or 1=1 /*", "%", "_",
    "' || (select 1) || '", "0x27", "\u02bc or 1=1", "admin'/*", "{\"$gt\": \"\"}", "attribute_exists(id)", "#n = :v",
    "a' and substr((select hash from treadle_tokens),1,1)='a", "?1", ":p", "%(id)s", "@x", "`x`", "null", "\x1f",
]  # fmt: skip
FILTERS = {
    "/jobs": ("task", "queue", "tenant", "key", "error", "state", "cursor", "since", "before"),
    "/schedules": ("task", "tenant", "prefix", "cursor"),
    "/audit": ("tenant", "actor", "kind", "job", "cursor"),
    "/costs": ("tenant",),
}


@any_store
def test_a_hostile_filter_finds_nothing_and_harms_nothing(app: Treadle, admin: Client, any_store: str) -> None:
    admin.post("/jobs", {"task": "greet", "payload": {"name": "Ada"}}, 201)
    admin.post("/schedules", {"name": "nightly", "task": "greet", "payload": {"name": "Ada"}, "every": "1h"}, 201)
    step = 3 if any_store == "sqlite" else 9
    for place, (path, names) in enumerate(FILTERS.items()):
        for name in names:
            for text in INJECTIONS[place % step :: step]:
                answer = admin.ask("GET", path, params={name: text})
                assert answer.status_code in (200, 422), (path, name, text, answer.text)
                if answer.status_code == 200 and name != "cursor":
                    found = next(value for key, value in answer.json().items() if key != "cursor")
                    assert found == [], (path, name, text, answer.text)
    assert len(admin.get("/jobs")["jobs"]) == 1
    assert app.check_schema() == []


# --------------------------------------------------------------------------------- S9: data is never code

EVALUATES = r"(?<![\w.])(eval|exec|compile|__import__|import_string)\(|os\.(system|popen)\(|shell=True"
UNPICKLES = r"^ *(import|from) +(pickle|marshal|shelve|dill|cloudpickle|yaml|jsonpickle)\b"


def test_no_module_evaluates_or_unpickles_data() -> None:
    found = [path for path, text in sources().items() if re.search(f"{EVALUATES}|{UNPICKLES}", text, re.MULTILINE)]
    assert found == ["integrations/django/results.py"]  # the tasks of Django's own API, of installed apps alone


def test_a_task_that_is_named_like_code_is_not_found(app: Treadle, admin: Client) -> None:
    hostile = ("os.system", "builtins:eval", "treadle.app.treadle:Treadle", "__import__('os')", "../tasks", "greet()")
    for name in hostile:
        answer = admin.post("/jobs", {"task": name, "payload": {"command": "id"}}, 422)
        assert answer["field"] == "task"
    job = app.enqueue("greet", {"name": "Ada"})
    app.engine.enqueue([job.evolve(id=new_id(), task=name) for name in hostile])  # as another program would
    run_until_idle(app)
    assert {one.task for one in app.find(state="pending").jobs} == set(hostile)


# ------------------------------------------------------------------------------------- S8: one way to be shown


def test_no_surface_shows_a_payload_that_is_not_masked() -> None:
    """In the rooms that people look through, a schedule is shown masked, and payloads and results come by the view."""
    found = []
    for name, text in sources().items():
        if name.startswith(("cli/", "server/", "integrations/")):
            if re.search(r"\bschedule_view\(", text) and "masked_schedule(" not in text:
                found.append(f"{name}: schedule_view of a schedule that is not masked")
            if re.search(r"\bjob\.(payload|result|payload_json)\b", text) and not re.search(r"\.masked\(", text):
                found.append(f"{name}: a payload or result that is not masked")
    # These compare payloads, look in them for secrets, or hand them to the program that enqueued them.
    programs = {
        "integrations/opentelemetry.py",
        "server/repeats.py",
        "integrations/django/results.py",
        "integrations/django/test.py",
    }
    assert [one for one in found if one.partition(":")[0] not in programs] == []


# ------------------------------------------------------------------------- S11: a real server, and bad clients


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a real server, which runs in a thread of this process."""
    app = with_tasks(Treadle(f"sqlite:///{tmp_path_factory.mktemp('threats') / 'jobs.db'}"))
    app.open()
    http = run.Http(asgi(app, **NO_LIMIT))
    with socket.create_server(("127.0.0.1", 0)) as bound:
        thread = threading.Thread(target=lambda: asyncio.run(http.serve(sockets=[bound])))
        thread.start()
        yield bound.getsockname()[1]
        http.should_exit = True
        thread.join(30)
    app.close()


def sent(port: int, request: bytes) -> bytes:
    """What the server answers to these bytes."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        parts = []
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has answered before it read it all
            connection.sendall(request)
        with contextlib.suppress(ConnectionResetError):
            while part := connection.recv(65_536):
                parts.append(part)
        return b"".join(parts)


END = b"\r\nHost: localhost\r\nConnection: close\r\n\r\n"
POST = b"POST /api/v1/jobs HTTP/1.1\r\n"
HOSTILE = [
    b"GET /healthz HTTP/1.1\r\nX: " + b"x" * 200_000 + END,
    b"GET /healthz HTTP/1.1" + b"".join(b"\r\nX-%d: y" % number for number in range(20_000)) + END,
    b"GET /" + b"x" * 200_000 + b" HTTP/1.1" + END,
    b"GET /healthz HTTP/1.1\r\nX: a\x00b" + END,
    b"GET /healthz HTTP/1.1\r\nX: a\rSet-Cookie: b=c" + END,
    b"GET /healthz HTTP/1.1\r\n folded: x" + END,
    b"GET /healthz\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",  # TLS, to a port that speaks none
    POST + b"Content-Length: 5\r\nContent-Length: 50" + END,
    POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked" + END + b"0\r\n\r\nGET / HTTP/1.1",
    POST + b"Transfer-Encoding: chunked, identity" + END + b"zz\r\n",
    POST + b"Transfer-Encoding: chunked" + END + b"f" * 40 + b"\r\nx",
    b"GET http://evil.example/healthz HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n",
    b"GET /login?code=%0d%0aSet-Cookie:%20x=y HTTP/1.1" + END,
    b"GET /login?code=a%0d%0aLocation:%20http://evil HTTP/1.1" + END,
    b"GET /api/v1/jobs/%0d%0aX-Evil:%201 HTTP/1.1" + END,
    b"TRACE /healthz HTTP/1.1\r\nX-Secret: canary" + END,
    b"CONNECT evil.example:80 HTTP/1.1" + END,
    b"GET /../../etc/passwd HTTP/1.1" + END,
    b"GET //etc/passwd HTTP/1.1" + END,
    b"GET \\..\\windows HTTP/1.1" + END,
]


@pytest.mark.parametrize("request_", HOSTILE, ids=lambda request: repr(request[:40]))
def test_a_hostile_request_is_refused_and_the_server_goes_on(port: int, request_: bytes) -> None:
    answer = sent(port, request_)
    head = answer.partition(b"\r\n\r\n")[0].lower()
    assert int(head.split()[1]) in range(400, 500) if head else True, answer[:300]
    assert b"traceback" not in answer.lower()
    assert b"root:" not in answer
    for forged in (b"\r\nset-cookie", b"\r\nlocation", b"\r\nx-evil", b"canary"):
        assert forged not in head
    assert sent(port, b"GET /healthz HTTP/1.1" + END).startswith(b"HTTP/1.1 200")


def test_slow_clients_keep_nobody_waiting(port: int) -> None:
    """Two hundred begin a request and do not end it. They cost little, and others are answered."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(200)]
    try:
        for connection in slow:
            connection.sendall(POST + b"Host: loc")
        assert sent(port, b"GET /healthz HTTP/1.1" + END).startswith(b"HTTP/1.1 200")
    finally:
        for connection in slow:
            connection.close()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB


def test_a_body_that_does_not_come_is_not_waited_for(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.server.guard.BODY_TIME", 0.05)
    head = b"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99"
    answer = sent(port, head + b"\r\nConnection: close\r\n\r\n{")
    assert answer.startswith(b"HTTP/1.1 408")
    assert b'"field":"body"' in answer


@pytest.mark.parametrize("query", ["limit=501", "limit=10000000000000000000000", "limit=-1", "limit=0", "limit=1e9"])
def test_a_page_is_never_larger_than_500(raw: Raw, headers: list[tuple[bytes, bytes]], query: str) -> None:
    for path in ("/jobs", "/schedules", "/audit"):
        answer = raw.ask("GET", f"{API}{path}?{query}", headers)
        check(answer, query)
        assert (answer.status, answer.json["field"]) == (422, "limit")


@pytest.fixture
def raw(server: Server) -> Iterator[Raw]:
    with Raw(server) as raw:
        yield raw


@pytest.fixture
def headers(app: Treadle, secrets: list[str]) -> list[tuple[bytes, bytes]]:
    secrets.append(app.tokens.create("pages", scopes=["read"]).secret)
    return [(b"authorization", f"Bearer {secrets[-1]}".encode())]
