"""The rows of the threat table in docs/security.md that no other file shows."""

import asyncio
import contextlib
import random
import re
import resource
import socket
import threading
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests.server.conftest import API, NO_LIMIT, Client, with_tasks
from tests.server.raw import Raw, check
from tests.server.test_scopes import everything
from tests.support.marks import any_store
from tests.support.sizes import size
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
    assert calling("compare_digest") == ["app/tokens.py", "builtin/webhook_signature.py"]  # the other: signatures
    assert calling("same") == ["app/tokens.py", "server/auth.py", "server/confirm.py"]


# --------------------------------------------------------------------------------- S7: hostile filters

INJECTIONS = [
    "' or '1'='1", "'; drop table treadle_jobs; --", "\" or 1=1 --", "') or ('a'='a", "1; select pg_sleep(5)", "%' --",
    "' union select hash from treadle_tokens --", "\\'; --", "$$; drop schema treadle; $$", "*/ or 1=1 /*", "%", "_",
    "' || (select 1) || '", "0x27", "\u02bc or 1=1", "admin'/*", "{\"$gt\": \"\"}", "attribute_exists(id)", "#n = :v",
    "a' and substr((select hash from treadle_tokens),1,1)='a", "?1", ":p", "%(id)s", "@x", "`x`", "null", "\x1f",
]  # fmt: skip
OUT = ["'", '"', "')", "'))", "`", "\\'", "''''", "$$", "x'", "%27", "\u02bc", "0;"]
THEN = [
    " or 1=1", " or 'a'='a", "; drop table jobs; select 1", "; delete from treadle.jobs", "; update jobs set state=1",
    " union select hash, 1, 2 from treadle_tokens", " union all select null,null,null", " and 1=(select pg_sleep(1))",
    " || (select secret from tokens) || ", " or exists(select 1 from sqlite_master)", "; attach database 'x' as x",
    "; copy jobs to program 'id'", " or attribute_exists(pk)", " OR size(#s) > :zero", " limit 1 offset 0",
]  # fmt: skip
END = ["", " --", " #", "/*", ";"]
MADE = [f"{one}{two}{three}" for one in OUT for two in THEN for three in END]
FILTERS = {
    "/jobs": (
        "task", "queue", "tenant", "key", "lane", "error", "fingerprint", "text", "state", "cursor", "since", "before",
        "limit",
    ),
    "/jobs/count": ("task", "queue", "tenant", "lane"),
    "/failures": ("task", "queue", "tenant", "since", "before", "cursor"),
    "/stats": ("span", "queue", "task"),
    "/schedules": ("task", "tenant", "name", "prefix", "enabled", "cursor"),
    "/audit": ("tenant", "actor", "kind", "job", "since", "until", "cursor"),
    "/audit/verify": ("tenant",),
    "/costs": ("tenant", "day", "days"),
    "/budgets": ("tenant",),
    "/tasks": ("name",),
    "//api/admin/jobs": ("state", "type", "limit", "offset"),
    "//api/admin/schedules": ("cursor",),
}  # fmt: skip
PLACES = [(path, name) for path, names in FILTERS.items() for name in names]
HOSTILE_FILTERS = {"sqlite": size(300, long=20_000), "postgres": size(60, long=2_000), "dynamodb": size(60, long=2_000)}
NOBODY = "nobody-has-this-name"


def hostile_texts(number: int) -> list[str]:
    """So many: those of the list, those made of its parts in order, then parts in any order."""
    choose = random.Random(20261118)
    known = [*INJECTIONS, *choose.sample(MADE, len(MADE))][:number]
    parts = [*OUT, *THEN, *END, *INJECTIONS]
    return known + ["".join(choose.choices(parts, k=choose.randint(2, 5)))[:190] for _ in range(number - len(known))]


@any_store
def test_a_hostile_filter_finds_nothing_and_harms_nothing(
    app: Treadle, with_admin: TestClient, secrets: list[str], any_store: str
) -> None:
    """It is answered as a name that nobody has, or refused as such."""
    with_admin.app.serve_app(app)
    secrets.append(app.tokens.create("filters", scopes=["admin"]).secret)
    admin = Client(with_admin, secrets[-1], secrets)
    failed = app.enqueue("send", {"to": "ada"})
    run_until_idle(app)
    admin.post("/jobs", {"task": "greet", "payload": {"name": "Ada"}}, 201)
    admin.post("/schedules", {"name": "nightly", "task": "greet", "payload": {"name": "Ada"}, "every": "1h"}, 201)
    usual = {place: admin.ask("GET", place[0], params={place[1]: NOBODY}) for place in PLACES}
    assert {answer.status_code for answer in usual.values()} == {200, 422}
    before = everything(app)
    for number, text in enumerate(hostile_texts(HOSTILE_FILTERS[any_store])):
        path, name = place = PLACES[number * 7 % len(PLACES)]
        answer = admin.ask("GET", path, params={name: text})
        assert answer.status_code in (200, 422), (path, name, text, answer.text)
        if answer.status_code == 200 and name != "cursor":
            assert answer.json() == usual[place].json(), (path, name, text, answer.text)
    assert everything(app) == before
    assert app.get(failed.id).state == "failed"
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
    """Five hundred begin a request and do not end it. They cost little, and others are answered at once."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(500)]
    begun = time.process_time()
    try:
        for number, connection in enumerate(slow):
            connection.sendall((POST + b"Host: localhost\r\nX: y")[: 20 + number % 40])
        for _ in range(5):
            assert sent(port, b"GET /healthz HTTP/1.1" + END).startswith(b"HTTP/1.1 200")
        assert time.process_time() - begun < 5
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
