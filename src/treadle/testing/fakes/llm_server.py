"""A language model that says what a test tells it to, as OpenAI and as Anthropic do."""

import json
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar

from treadle.testing.clock import FakeClock
from treadle.testing.fakes.http_fake import FakeReply, FakeRequest, HttpFake, Refusal
from treadle.testing.fakes.llm_shapes import AnthropicShape, LlmReply, LlmShape, OpenAiShape

OPENAI, ANTHROPIC = OpenAiShape(), AnthropicShape()
EVENTS = {"Content-Type": "text/event-stream; charset=utf-8"}


class LlmServer(HttpFake):
    """OpenAI's base URL is `url` + "/v1", Anthropic's is `url`. `say` scripts replies, `calls` holds what was asked."""

    routes: ClassVar[tuple[tuple[str, str, str], ...]] = (
        ("POST", "/v1/chat/completions", "_chat"),
        ("POST", "/v1/messages", "_chat"),
    )

    def __init__(self, *, api_key: str = "fake-key", port: int = 0, clock: FakeClock | None = None) -> None:
        super().__init__(port=port, clock=clock)
        self.api_key = api_key
        self._script: deque[LlmReply] = deque()
        self._calls: list[dict[str, Any]] = []
        self._answer: Callable[[dict[str, Any]], str | dict[str, Any]] = lambda _: "ok"

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The bodies of the requests that were answered."""
        with self._changed:
            return list(self._calls)

    def say(
        self, text: str | dict[str, Any] = "", *, tools: dict[str, dict[str, Any]] | None = None, stop: str = ""
    ) -> None:
        """The next reply: a text, an object as JSON, calls of tools by name with their arguments. Replies queue up."""
        with self._changed:
            self._script.append(LlmReply(_text(text), tuple((tools or {}).items()), stop))

    def answer_with(self, answer: Callable[[dict[str, Any]], str | dict[str, Any]]) -> None:
        """Call this with the body of a request for which no reply was scripted; without it, the model says "ok"."""
        with self._changed:
            self._answer = answer

    def error(self, status: int, code: str, message: str) -> dict[str, Any]:
        return OPENAI.error(status, code, message)

    def error_for(self, request: FakeRequest, status: int, code: str, message: str) -> dict[str, Any]:
        return _shape(request).error(status, code, message)

    def check(self, request: FakeRequest) -> None:
        if self.api_key not in (request.bearer(), request.headers.get("x-api-key")):
            raise Refusal(401, "", "Incorrect API key provided.")
        if _shape(request) is ANTHROPIC and "anthropic-version" not in request.headers:
            raise Refusal(400, "", "anthropic-version: header is required")

    def _chat(self, request: FakeRequest) -> FakeReply:
        shape, asked = _shape(request), request.json()
        shape.check(asked)
        self._calls.append(asked)
        reply = self._script.popleft() if self._script else LlmReply(_text(self._answer(asked)))
        unknown = {name for name, _ in reply.calls} - shape.tools(asked)
        if unknown:
            raise Refusal(400, "", f"the script calls {', '.join(sorted(unknown))}, which the request does not offer")
        if asked.get("response_format", {}).get("type", "text") != "text" and not _is_json(reply.text):
            reply = reply._replace(text="{}")
        answer = shape.answer(asked, reply, int(self.clock.now().timestamp()))
        return FakeReply(200, shape.stream(answer), EVENTS) if asked.get("stream") else FakeReply(200, answer)

    def _forget(self) -> None:
        super()._forget()
        self._script.clear()
        self._calls.clear()


def _shape(request: FakeRequest) -> LlmShape:
    return ANTHROPIC if request.path.startswith("/v1/messages") else OPENAI


def _text(value: str | dict[str, Any]) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def llm(*, api_key: str = "fake-key", port: int = 0, clock: FakeClock | None = None) -> LlmServer:
    """A language model by script, for clients of OpenAI's chat completions and of Anthropic's messages."""
    return LlmServer(api_key=api_key, port=port, clock=clock)
