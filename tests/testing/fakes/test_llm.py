"""The stand-in for a language model, over plain HTTP, as OpenAI's clients and Anthropic's speak it."""

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from treadle.testing import fakes
from treadle.testing.fakes import LlmServer

ASKED: dict[str, Any] = {"model": "m", "max_tokens": 10, "messages": [{"role": "user", "content": "Classify this."}]}
KEYS = {
    "/v1/chat/completions": {"Authorization": "Bearer fake-key"},
    "/v1/messages": {"x-api-key": "fake-key", "anthropic-version": "2023-06-01"},
}
PATHS = pytest.mark.parametrize("path", KEYS)


@pytest.fixture
def server() -> Iterator[LlmServer]:
    with fakes.llm() as server:
        yield server


def ask(http: httpx2.Client, server: LlmServer, path: str, **more: Any) -> httpx2.Response:
    return http.post(server.url + path, json={**ASKED, **more}, headers=KEYS[path])


def text(answer: httpx2.Response) -> str:
    body = answer.json()
    said: str = body["choices"][0]["message"]["content"] if "choices" in body else body["content"][0]["text"]
    return said


@PATHS
def test_it_says_what_it_is_told_and_then_ok(http: httpx2.Client, server: LlmServer, path: str) -> None:
    server.say("An invoice.")
    server.say({"kind": "invoice"})
    assert [text(ask(http, server, path)) for _ in range(3)] == ["An invoice.", '{"kind": "invoice"}', "ok"]
    server.answer_with(lambda asked: f"{len(asked['messages'])} messages")
    assert text(ask(http, server, path)) == "1 messages"
    assert [call["model"] for call in server.calls] == ["m"] * 4


def test_a_failure_has_the_shape_of_who_was_asked(http: httpx2.Client, server: LlmServer) -> None:
    server.fail_next(429, headers={"Retry-After": "1"}, times=2)
    first, second = (ask(http, server, path) for path in KEYS)
    assert (first.headers["Retry-After"], first.json()["error"]["code"]) == ("1", "rate_limit_exceeded")
    assert (second.json()["type"], second.json()["error"]["type"]) == ("error", "rate_limit_error")
    server.fail_next(529, on="* /v1/messages")
    assert text(ask(http, server, "/v1/chat/completions")) == "ok"
    assert ask(http, server, "/v1/messages").json()["error"]["type"] == "overloaded_error"
    assert len(server.calls) == 1


@PATHS
def test_a_tool_that_is_not_offered_is_a_mistake_of_the_script(
    http: httpx2.Client, server: LlmServer, path: str
) -> None:
    server.say(tools={"send_reply": {"to": "ada"}})
    refused = ask(http, server, path)
    assert (refused.status_code, "the script calls send_reply" in refused.text) == (400, True)


@PATHS
@pytest.mark.parametrize("change", [{"messages": []}, {"model": ""}])
def test_a_request_without_what_it_needs_is_refused(
    http: httpx2.Client, server: LlmServer, path: str, change: dict[str, Any]
) -> None:
    assert ask(http, server, path, **change).status_code == 400
    assert server.calls == []


@PATHS
def test_only_its_key_opens_it(http: httpx2.Client, server: LlmServer, path: str) -> None:
    assert http.post(server.url + path, json=ASKED).status_code == 401
    assert http.post(f"{server.url}/v1/messages", json=ASKED, headers={"x-api-key": "fake-key"}).status_code == 400


@PATHS
def test_a_stream_is_made_of_events(http: httpx2.Client, server: LlmServer, path: str) -> None:
    server.say("A text of some length.")
    answer = ask(http, server, path, stream=True)
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
    assert len([json.loads(line) for line in lines]) > 3


def test_what_was_asked_and_scripted_is_forgotten_on_request(http: httpx2.Client, server: LlmServer) -> None:
    ask(http, server, "/v1/messages")
    server.say("never said")
    server.clear()
    assert (server.calls, text(ask(http, server, "/v1/messages"))) == ([], "ok")
