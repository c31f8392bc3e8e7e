"""Whatever is sent, the answer is a problem document that names the field: never an error of ours, on any store."""

import json
import random
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from tests.server.conftest import API, Client
from tests.server.endpoints import CHANGES, ENDPOINTS, Endpoint, Place, place_in
from tests.server.raw import Raw, check
from tests.support.marks import any_store
from treadle import Treadle
from treadle.server.api import Server
from treadle.server.guard import MAX_BODY, MAX_DEPTH

JSON = (b"content-type", b"application/json")
NEW_JOB = f"{API}/jobs"


@pytest.fixture
def token(app: Treadle, secrets: list[str]) -> tuple[bytes, bytes]:
    secrets.append(app.tokens.create("fuzz", scopes=["admin"]).secret)
    return (b"authorization", f"Bearer {secrets[-1]}".encode())


@pytest.fixture
def raw(server: Server) -> Iterator[Raw]:
    with Raw(server) as raw:
        yield raw


# ------------------------------------------------------------------------------------------ bodies made by hand


BROKEN = [
    b"{", b"}", b"[", b"null", b"[]", b"1", b'"x"', b"true", b"{}{}", b"{'task': 'greet'}", b'{"task": }', b"\xff\xfe",
    b'{"task": "\xc3\x28"}', b'{"a": 1,}', b"// x", b'{"task": "gr\x00eet"}', b'{"task": "greet"', b"\x00", b"nul",
    '{"task": "greet"}'.encode("utf-16"), '{"task": "greet"}'.encode("utf-32"), '{"task": "greet"}'.encode("utf-16-le"),
    b'{"task": NaN}', b'{"task": "greet", "payload": {"name": NaN}}', b'{"priority": Infinity}', b'{"priority": 1e999}',
    b'{"priority": -Infinity}', b'{"priority": ' + b"9" * 5000 + b"}", b'{"priority": 1.5}', b'{"priority": true}',
    b'{"task": "greet", "task": "send"}', b'{"task": "greet", "payload": {"name": "a", "name": "b"}}',
    b'{"task": "\\ud800"}', b'{"\\ud800": 1}', b'{"task": "greet", "\\udfff\\u0000": 1}',
    b'{"task": "greet", "__proto__": 1}',
    b'{"task": "greet", "payload": {"name": "\\ud800"}}', b'{"task": "greet", "payload": {"\\udc00": "x"}}',
    b'{"task": "greet", "payload": {"name": "\\u0000"}, "extra": {}}', b'{"task": ["greet"]}',
    b'{"task": {"name": "greet"}}',
    b'{"task": "greet", "key": ""}', b'{"task": "greet", "run_after": "never"}', b'{"task": "greet", "lane": 5}',
]  # fmt: skip


@pytest.mark.parametrize("body", BROKEN, ids=lambda body: repr(body[:40]))
def test_a_body_that_cannot_be_is_refused_by_its_field(
    app: Treadle, raw: Raw, token: tuple[bytes, bytes], body: bytes
) -> None:
    answer = raw.ask("POST", NEW_JOB, [token, JSON], body)
    check(answer, body)
    assert answer.status == 422
    assert app.find().jobs == []


@pytest.mark.parametrize("endpoint", [one for one in CHANGES if one.body is not None], ids=str)
def test_no_change_takes_a_broken_body(app: Treadle, raw: Raw, token: tuple[bytes, bytes], endpoint: Endpoint) -> None:
    place = place_in(app)
    for body in BROKEN[:24]:
        answer = raw.ask(endpoint.method, endpoint.url(place), [token, JSON], body)
        check(answer, body)
        assert answer.status == 422, body
    assert raw.ask(endpoint.method, endpoint.url(place), [token, JSON]).status == 422


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "body: is not valid JSON: Expecting property name enclosed in double quotes"),
        (b'{"task": "greet", "task": "send"}', "body: is not valid JSON: the key 'task' is there twice"),
        (b'{"priority": NaN}', "body: is not valid JSON: NaN is not a number of JSON"),
        (b"\xff", "body: is not valid JSON: it must be UTF-8"),
        (b'{"priority": ' + b"9" * 5000 + b"}", "body: is not valid JSON: a number in it is too long"),
        (b'{"tusk": "greet"}', "task: Field required"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_refusal_says_what_is_wrong(raw: Raw, token: tuple[bytes, bytes], body: bytes, words: str) -> None:
    assert raw.ask("POST", NEW_JOB, [token, JSON], body).json["detail"].startswith(words)


def test_all_that_is_wrong_is_told_at_once(admin: Client) -> None:
    answer = admin.post("/jobs", {"priority": "high", "lane": 3, "colour": "red"}, 422)
    assert {problem["field"] for problem in answer["problems"]} == {"task", "priority", "lane", "colour"}
    assert "openapi.json" in next(one["problem"] for one in answer["problems"] if one["field"] == "colour")


# ------------------------------------------------------------------------------------------ large, deep and slow


def test_a_body_that_is_too_large_is_refused_before_it_is_read(raw: Raw, token: tuple[bytes, bytes]) -> None:
    for headers, body in [
        ([], b" " * (MAX_BODY + 1)),
        ([(b"content-length", b"99999999999")], b"{}"),
        ([(b"content-length", b"9" * 5000)], b"{}"),
        ([(b"content-length", b"-1")], b"{}"),
        ([(b"content-length", b"1e3")], b"{}"),
        ([(b"content-length", "²".encode())], b"{}"),
    ]:
        answer = raw.ask("POST", NEW_JOB, [token, JSON, *headers], body)
        check(answer, headers)
        assert (answer.status, answer.json["limit"]) == (413, MAX_BODY)


def test_the_largest_payload_passes(admin: Client, app: Treadle) -> None:
    name = "x" * ((1 << 20) - 20)
    job = admin.post("/jobs", {"task": "greet", "payload": {"name": name}}, 201)["job"]
    assert app.get(job["id"]).payload == {"name": name}
    answer = admin.post("/jobs", {"task": "greet", "payload": {"name": name + "x" * 100}}, 422)
    assert answer["field"] == "name"
    assert "limit is 1,048,576" in answer["detail"]


def nested(depth: int) -> bytes:
    return b'{"task": "whatever", "payload": ' + b"[" * depth + b"]" * depth + b"}"


def test_a_body_may_be_nested_64_deep_and_no_deeper(raw: Raw, token: tuple[bytes, bytes]) -> None:
    assert raw.ask("POST", NEW_JOB, [token, JSON], nested(MAX_DEPTH - 1)).status == 201
    for depth in (MAX_DEPTH, 1000, 100_000, 500_000):
        answer = raw.ask("POST", NEW_JOB, [token, JSON], nested(depth))
        check(answer, depth)
        assert (answer.status, answer.json["limit"]) == (422, MAX_DEPTH)


def test_brackets_in_a_text_are_no_depth(raw: Raw, token: tuple[bytes, bytes], app: Treadle) -> None:
    text = '[{"\\' * 200
    body = json.dumps({"task": "whatever", "payload": text}).encode()
    assert raw.ask("POST", NEW_JOB, [token, JSON], body).status == 201
    assert app.find().jobs[0].payload == text


@pytest.mark.parametrize("hidden", [b'"\\', b'"\\\\\\"', b'"\n', b'"x', b'\xef\xbb\xbf"'])
def test_depth_cannot_be_hidden_behind_a_broken_text(raw: Raw, token: tuple[bytes, bytes], hidden: bytes) -> None:
    answer = raw.ask("POST", NEW_JOB, [token, JSON], hidden + nested(100_000))
    check(answer, hidden)
    assert answer.status == 422


@pytest.mark.parametrize(
    "body",
    [b'"' + b'\\"' * 500_000, b'"' + b'\\"' * 500_000 + b"\\", b'"' * 1_000_000, b'"\\' * 500_000, b"\\" * 1_000_000],
    ids=lambda body: repr(body[:6] + body[-3:]),
)
def test_a_megabyte_of_quotes_is_refused_at_once(raw: Raw, body: bytes) -> None:
    """Whoever asks: it is looked at before the token is."""
    begun = time.process_time()
    answer = raw.ask("POST", NEW_JOB, [JSON], body)
    check(answer, "quotes")
    assert answer.status in (401, 422)
    assert time.process_time() - begun < 2


def test_a_long_query_is_refused(raw: Raw, token: tuple[bytes, bytes]) -> None:
    answer = raw.ask("GET", f"{API}/jobs?cursor={'x' * 9000}", [token])
    check(answer, "long query")
    assert (answer.status, answer.json["limit"]) == (414, 8192)


# --------------------------------------------------------------------------------------------------- addresses


PATHS = [
    "/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/..%2f..%2fetc%2fpasswd", "/%252e%252e%252fetc/passwd",
    "/....//....//etc/passwd", "/..%5c..%5cwindows", "/..;/admin", "/%c0%ae%c0%ae/etc/passwd", "/jobs/..", "/jobs/.",
    "/jobs/%2e%2e", "/jobs/..%2fschedules", "/jobs//", "/jobs/", "//jobs", "/jobs/%00", "/jobs/a%00b",
    "/jobs/%0d%0aX: y",
    "/schedules/%00", "/schedules/a%0ab", "/schedules/%ff%fe", "/schedules/..%2f..", "/schedules/" + "x" * 5000,
    "/workers/%00/drain", "/tokens/%00/revoke", "/jobs/%F0%9F%98%80", "/jobs/%ED%A0%80", "/jobs/'%20or%201=1--",
    "/jobs/$(id)", "/jobs/{{7*7}}", "/jobs/%3Cscript%3E", "/jobs/0199e0c5*", "/jobs/0199e0c5%", "/jobs/_______",
    "/static/../../etc/passwd", "/docs", "/redoc", "/.env", "/.git/config", "/openapi.yaml", "/jobs.json",
]  # fmt: skip
UP = [
    "../", "..%2f", "%2e%2e/", "%2e%2e%2f", "..%5c", "%252e%252e%252f", "....//", "..;/", "..%00/", "%c0%ae%c0%ae/",
    "./../", "%2e/%2e%2e/", "/", "file:///", "C:%5c", "\\\\host\\",
]  # fmt: skip
ROOMS = ["/static/", "/static/treadle.css/", "/jobs/", "/schedules/", "/schedules/new/", "/"]
PATHS += [f"{room}{up * 3}{file}" for room in ROOMS for up in UP for file in ("etc/passwd", "page.py")]


def test_no_address_leads_out(raw: Raw, token: tuple[bytes, bytes]) -> None:
    for number, path in enumerate(PATHS):
        for prefix in (API, ""):
            for method in ("GET", ("POST", "DELETE", "PUT", "BREW")[number % 4]):
                answer = raw.ask(method, f"{prefix}{path}", [token])
                check(answer, path)
                assert answer.status in (404, 405, 422), (method, path, answer)
                assert not [one for one in (b"root:", b"import ", b"{%") if one in answer.body], (method, path)


@any_store
def test_names_that_no_store_can_hold_are_not_there(
    raw: Raw, token: tuple[bytes, bytes], app: Treadle, any_store: str
) -> None:
    place = place_in(app)
    for name in ("\x00", "a\x00", "\ufffd", "'", '"', "\\", "%", "_", "x" * 3000, "é" * 150, "💥", "*", " ", "\u202e"):
        for endpoint in ENDPOINTS:
            if "{" not in endpoint.path:
                continue
            body = b"" if endpoint.body is None else json.dumps(endpoint.body).encode()
            path = endpoint.path.format(job_id=quote(name, safe=""), name=quote(name, safe=""))
            answer = raw.ask(endpoint.method, path, [token, JSON] if body else [token], body)
            check(answer, (name, endpoint))
            assert answer.status in (404, 409, 422), (name, endpoint, answer)
    assert app.get(place.job_id).revision == 0


# --------------------------------------------------------------------------------------------------- parameters


def test_a_parameter_that_is_not_known_is_refused_everywhere(app: Treadle, admin: Client) -> None:
    place = place_in(app)
    before = app.get(place.job_id)
    for endpoint in ENDPOINTS:
        if endpoint.scope == "public":
            continue
        request = {} if endpoint.body is None else {"json": endpoint.body}
        answer = admin.ask(endpoint.method, f"/{endpoint.url(place)}", params={"revison": "3"}, **request)
        assert (answer.status_code, answer.json()["field"]) == (422, "revison"), endpoint
    assert app.get(place.job_id) == before
    assert admin.get("/jobs/x", 422, **{"": "x"})["field"] == "query"


def test_a_refused_parameter_is_told_which_there_are(admin: Client) -> None:
    assert admin.get("/costs", 422, dayz=3)["detail"] == (
        "dayz: the parameter 'dayz' is not known here; known: day, days, tenant"
    )
    assert admin.get("/doctor", 422, x=1)["detail"] == "x: the parameter 'x' is not known here; known: none"


def test_a_parameter_that_is_given_twice_is_refused(admin: Client) -> None:
    answer = admin.ask("GET", "/jobs?limit=1&limit=500")
    assert (answer.status_code, answer.json()["detail"]) == (422, "limit: is given twice; give it once")


QUESTIONS = [
    ("/jobs", {"limit": 0}, "limit"), ("/jobs", {"limit": 501}, "limit"), ("/jobs", {"limit": 10**30}, "limit"),
    ("/jobs", {"limit": "1e2"}, "limit"), ("/jobs", {"limit": ""}, "limit"), ("/jobs", {"limit": "0x10"}, "limit"),
    ("/jobs", {"state": "nowhere"}, "state"), ("/jobs", {"state": ""}, "state"),
    ("/jobs", {"task": "a\x00"}, "task"),
    ("/jobs", {"queue": "\x00"}, "queue"), ("/jobs", {"tenant": "\x1f"}, "tenant"),
    ("/jobs", {"key": "\x00"}, "key"),
    ("/jobs", {"error": "\x00"}, "error"), ("/jobs", {"since": "then"}, "since"),
    ("/jobs", {"before": "\x00"}, "before"),
    ("/jobs", {"since": "2026-01-01"}, "since"), ("/jobs", {"since": "101y"}, "since"),
    ("/jobs", {"since": "nan"}, "since"),
    ("/jobs", {"cursor": "x"}, "cursor"), ("/jobs", {"cursor": "/"}, None), ("/jobs", {"cursor": "\x00"}, "cursor"),
    ("/jobs", {"cursor": "failed/x"}, "cursor"), ("/jobs", {"cursor": "/ffffffff"}, "cursor"),
    ("/jobs", {"cursor": "failed/9999999999999#x", "state": "failed"}, "cursor"),
    ("/jobs", {"cursor": "'; drop table jobs; --"}, "cursor"), ("/jobs", {"cursor": "x" * 1001}, "cursor"),
    ("/schedules", {"limit": 501}, "limit"), ("/schedules", {"cursor": "x"}, "cursor"),
    ("/schedules", {"cursor": "a/b/c"}, "cursor"), ("/schedules", {"prefix": "\x00"}, "prefix"),
    ("/schedules", {"cursor": "%00/%00"}, None), ("/schedules", {"enabled": "maybe"}, "enabled"),
    ("/audit", {"limit": 501}, "limit"), ("/audit", {"cursor": "x"}, "cursor"),
    ("/audit", {"cursor": "a_b_c"}, "cursor"),
    ("/audit", {"cursor": "0001-01-01T00:00:00+14:00_x_1"}, "cursor"), ("/audit", {"job": "\x00"}, "job"),
    ("/audit", {"cursor": "2026-01-01T00:00:00+00:00_x_" + "9" * 900}, None), ("/audit", {"kind": "x"}, None),
    ("/audit", {"since": "0001-01-01T00:00:00+14:00"}, "since"), ("/audit", {"job": "nobody"}, None),
    ("/stats", {"span": "\x00"}, "span"), ("/stats", {"queue": "\x00"}, "queue"),
    ("/costs", {"day": "0000-00-00"}, "day"), ("/costs", {"day": "2026-02-30"}, "day"),
    ("/costs", {"days": 3661}, "days"),
    ("/costs", {"day": "99999999999999999999"}, "day"), ("/costs", {"days": -1}, "days"),
    ("/costs", {"tenant": "\x00"}, "tenant"),
]  # fmt: skip
"""A path, its query, and the field that is refused; None: nothing is wrong with it, and nothing is there."""


@any_store
def test_a_question_that_cannot_be_is_refused_by_its_field(admin: Client) -> None:
    for path, query, field in QUESTIONS:
        answer = admin.ask("GET", path, params=query)
        refused = answer.json().get("field") if answer.status_code == 422 else answer.status_code
        assert refused == (200 if field is None else field), (path, query, answer.text)


# --------------------------------------------------------------------------------------------------- generated


TEXTS = [
    "", " ", "*", "\x00", "a\x00b", "\x7f", "\u202e", "\ud800", "\udfff", "é" * 101, "x" * 201, "x" * 70_000, "💥",
    "null",
    "-1", "1e999", "NaN", "0", "'", '"', "';--", "' or '1'='1", "%", "_", "\\", "{{7*7}}", "${jndi:x}", "../..", "\r\n",
    "<script>", "2026-01-01T00:00Z", "9999-12-31T23:59:59Z", "0001-01-01T00:00+14:00", "100y", "1d", "30 2 * * *",
    "greet",
    "nightly", "default", "0199e0c5-6f3b-7d41-9c1e-2b7f5f0a8c11", "0199", "pending", "failed",
]  # fmt: skip
NUMBERS = [0, -1, 1, 2, 500, 501, 2**31, -(2**31) - 1, 2**63, 2**64, 10**30, -(10**30), 1.5, 1e308, -0.0, 0.1]
PARAMETERS = [
    "state", "task", "queue", "tenant", "key", "error", "since", "before", "limit", "cursor", "prefix", "enabled",
    "gone",
    "actor", "kind", "job", "until", "span", "day", "days", "n", "reason", "revision", "code", "unknown", "",
]  # fmt: skip
FIELDS = [
    "task", "payload", "tenant", "queue", "lane", "priority", "key", "unique", "run_after", "expires_at", "timeout",
    "reason", "revision", "keep_attempts", "action", "filter", "confirm", "name", "cron", "every", "tz", "enabled",
    "max_attempts", "misfire", "misfire_limit", "misfire_age", "overlap", "jitter", "everything", "until", "label",
    "scopes", "queues", "expires", "token", "ids", "state", "error", "since", "before", "unknown", "\ud800", "",
    "__class__",
]  # fmt: skip


class Generator:
    """Requests that are wrong in one way or in many; the same for the same seed."""

    def __init__(self, seed: int, place: Place, token: tuple[bytes, bytes]) -> None:
        self._random = random.Random(seed)
        self._place = place
        self._token = token

    def request(self, endpoint: Endpoint) -> tuple[str, str, list[tuple[bytes, bytes]], bytes]:
        choose = self._random.random
        place = self._place
        if choose() < 0.3:
            place = Place(*(quote(self._text(), errors="replace", safe="") for _ in range(2)))
        target = endpoint.url(place) if place.job_id and place.name else endpoint.url(self._place)
        if choose() < 0.5:
            pairs = [(self._random.choice(PARAMETERS), self._text()) for _ in range(self._random.randint(1, 3))]
            target += "?" + "&".join(f"{name}={quote(text[:2000], errors='replace')}" for name, text in pairs)
        headers = [self._token, JSON] if choose() < 0.95 else [JSON]
        if choose() < 0.1:
            headers.append((b"idempotency-key", self._text()[:300].encode("utf-8", "replace")))
        method = endpoint.method if choose() < 0.95 else self._random.choice(["PUT", "PATCH", "DELETE", "POST", "GET"])
        return method, target, headers, self._body(endpoint)

    def _body(self, endpoint: Endpoint) -> bytes:
        if endpoint.body is None and self._random.random() < 0.9:
            return b""
        body: Any = dict(endpoint.body or {})
        for _ in range(self._random.randint(1, 3)):
            names = list(body) if body and self._random.random() < 0.5 else FIELDS
            body[self._random.choice(names)] = self._value()
        if self._random.random() < 0.05:
            body = self._value()
        text = json.dumps(body).encode()
        if self._random.random() < 0.1:  # and now break it
            at = self._random.randrange(len(text))
            text = text[:at] + bytes([self._random.randrange(256)]) + text[at + 1 :]
        return text

    def _text(self) -> str:
        if self._random.random() < 0.7:
            return self._random.choice(TEXTS)
        return "".join(chr(self._random.randrange(0x10FFFF)) for _ in range(self._random.randint(1, 20)))

    def _value(self, depth: int = 0) -> Any:
        kind = self._random.randrange(8 if depth < 3 else 5)
        if kind < 2:
            return self._text()
        if kind == 2:
            return self._random.choice(NUMBERS)
        if kind < 5:
            return self._random.choice([None, True, False, [], {}])
        if kind == 5:
            return [self._value(depth + 1) for _ in range(self._random.randint(1, 3))]
        return {self._random.choice(FIELDS): self._value(depth + 1) for _ in range(self._random.randint(1, 3))}


SHARE = {"sqlite": 2000, "postgres": 500, "dynamodb": 500}
"""How many requests each store is sent: most of them never reach it."""


@any_store
def test_thousands_of_wrong_requests_are_never_an_error_of_ours(
    app: Treadle, raw: Raw, token: tuple[bytes, bytes], any_store: str, server: Server, secrets: list[str]
) -> None:
    server.stop()  # a stream ends at once
    place = place_in(app)
    generator = Generator(20261118, place, token)
    asked = [one for one in ENDPOINTS if one.path != "/readyz"]
    statuses: dict[int, int] = {}
    for number in range(SHARE[any_store]):
        endpoint = asked[number % len(asked)]
        request = generator.request(endpoint)
        answer = raw.ask(*request)
        check(answer, request)
        assert not [secret for secret in secrets if secret.encode() in answer.body]
        statuses[answer.status] = statuses.get(answer.status, 0) + 1
    assert statuses[422] > SHARE[any_store] / 3, statuses  # they are wrong, and reach what they were meant for
    assert {200, 401, 404} <= statuses.keys(), statuses
