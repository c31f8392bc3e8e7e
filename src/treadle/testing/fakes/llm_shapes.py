"""How OpenAI and Anthropic write a request, an answer, a stream and an error."""

import json
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple

from treadle.testing.fakes.http_fake import Refusal

OPENAI_TYPES = {401: "invalid_request_error", 429: "requests", 500: "server_error", 503: "server_error"}
OPENAI_CODES = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}
ANTHROPIC_TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    413: "request_too_large", 429: "rate_limit_error", 500: "api_error", 529: "overloaded_error",
}  # fmt: skip


class LlmReply(NamedTuple):
    """What the model says next: a text, calls of tools, or both."""

    text: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()
    stop: str = ""  # the vendor's reason for the end; empty: as the reply suggests


class LlmShape(ABC):
    """One vendor's way of writing."""

    @abstractmethod
    def check(self, asked: dict[str, Any]) -> None:
        """Refuse what the vendor would refuse."""

    @abstractmethod
    def tools(self, asked: dict[str, Any]) -> set[str]:
        """The names of the tools that the request offers."""

    @abstractmethod
    def answer(self, asked: dict[str, Any], reply: LlmReply, now: int) -> dict[str, Any]:
        """The body of an answer."""

    @abstractmethod
    def stream(self, answer: dict[str, Any]) -> bytes:
        """The same answer as server-sent events."""

    @abstractmethod
    def error(self, status: int, code: str, message: str) -> dict[str, Any]:
        """The body of an error."""


class OpenAiShape(LlmShape):
    """POST /v1/chat/completions."""

    def check(self, asked: dict[str, Any]) -> None:
        messages = asked.get("messages")
        if not isinstance(messages, list) or not messages or not asked.get("model"):
            raise Refusal(400, "missing_required_parameter", "Missing required parameter: 'model' or 'messages'.")
        open_calls: set[str] = set()
        for message in messages:
            if message.get("role") == "tool":
                if message.get("tool_call_id") not in open_calls:
                    raise Refusal(
                        400, "", "messages with role 'tool' must be a response to a message with 'tool_calls'."
                    )
                open_calls.discard(message["tool_call_id"])
            elif open_calls:
                break
            open_calls |= {call["id"] for call in message.get("tool_calls") or []}
        if open_calls:
            raise Refusal(400, "", "An assistant message with 'tool_calls' must be followed by tool messages for each.")

    def tools(self, asked: dict[str, Any]) -> set[str]:
        return {tool["function"]["name"] for tool in asked.get("tools") or [] if tool.get("type") == "function"}

    def answer(self, asked: dict[str, Any], reply: LlmReply, now: int) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": reply.text or None, "refusal": None}
        if reply.calls:
            message["tool_calls"] = [
                {"id": _id("call"), "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
                for name, arguments in reply.calls
            ]
        stop = reply.stop or ("tool_calls" if reply.calls else "stop")
        spent, made = _tokens(asked["messages"]), _tokens(message)
        return {
            "id": _id("chatcmpl"),
            "object": "chat.completion",
            "created": now,
            "model": asked["model"],
            "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": stop}],
            "usage": {"prompt_tokens": spent, "completion_tokens": made, "total_tokens": spent + made},
        }

    def stream(self, answer: dict[str, Any]) -> bytes:
        choice = answer["choices"][0]
        about = {name: answer[name] for name in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
        calls = [{"index": place, **call} for place, call in enumerate(choice["message"].get("tool_calls", []))]
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        deltas += [{"content": piece} for piece in _pieces(choice["message"]["content"] or "")]
        deltas += [{"tool_calls": [call]} for call in calls]
        chunks = [{**about, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
        last = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
        chunks += [{**about, "choices": [last]}, {**about, "choices": [], "usage": answer["usage"]}]
        return b"".join(b"data: %s\n\n" % json.dumps(chunk).encode() for chunk in chunks) + b"data: [DONE]\n\n"

    def error(self, status: int, code: str, message: str) -> dict[str, Any]:
        kind = OPENAI_TYPES.get(status, "invalid_request_error")
        words = message or "The server had an error while processing your request."
        return {"error": {"message": words, "type": kind, "param": None, "code": code or OPENAI_CODES.get(status)}}


class AnthropicShape(LlmShape):
    """POST /v1/messages."""

    def check(self, asked: dict[str, Any]) -> None:
        for name in ("model", "max_tokens", "messages"):
            if not asked.get(name):
                raise Refusal(400, "", f"{name}: Field required")
        blocks = [message["content"] if isinstance(message["content"], list) else [] for message in asked["messages"]]
        for called, following in zip(blocks, [*blocks[1:], []], strict=True):
            open_calls = {block["id"] for block in called if block.get("type") == "tool_use"}
            if open_calls - {block.get("tool_use_id") for block in following if block.get("type") == "tool_result"}:
                raise Refusal(400, "", "`tool_use` ids were found without `tool_result` blocks immediately after")

    def tools(self, asked: dict[str, Any]) -> set[str]:
        return {tool["name"] for tool in asked.get("tools") or []}

    def answer(self, asked: dict[str, Any], reply: LlmReply, now: int) -> dict[str, Any]:  # noqa: ARG002 - its answers have no time
        content: list[dict[str, Any]] = [{"type": "text", "text": reply.text}] if reply.text else []
        for name, arguments in reply.calls:
            content.append({"type": "tool_use", "id": _id("toolu"), "name": name, "input": arguments})
        return {
            "id": _id("msg"),
            "type": "message",
            "role": "assistant",
            "model": asked["model"],
            "content": content,
            "stop_reason": reply.stop or ("tool_use" if reply.calls else "end_turn"),
            "stop_sequence": None,
            "usage": {"input_tokens": _tokens(asked["messages"]), "output_tokens": _tokens(content)},
        }

    def stream(self, answer: dict[str, Any]) -> bytes:
        started = {**answer, "content": [], "stop_reason": None, "usage": {**answer["usage"], "output_tokens": 0}}
        events: list[dict[str, Any]] = [{"type": "message_start", "message": started}]
        for place, block in enumerate(answer["content"]):
            is_text = block["type"] == "text"
            empty = {**block, "text": ""} if is_text else {**block, "input": {}}
            pieces = _pieces(block["text"] if is_text else json.dumps(block["input"]))
            name, kind = ("text", "text_delta") if is_text else ("partial_json", "input_json_delta")
            events.append({"type": "content_block_start", "index": place, "content_block": empty})
            for piece in pieces:
                delta = {"type": kind, name: piece}
                events.append({"type": "content_block_delta", "index": place, "delta": delta})
            events.append({"type": "content_block_stop", "index": place})
        end = {"stop_reason": answer["stop_reason"], "stop_sequence": None}
        made = {"output_tokens": answer["usage"]["output_tokens"]}
        events += [{"type": "message_delta", "delta": end, "usage": made}, {"type": "message_stop"}]
        return b"".join(b"event: %s\ndata: %s\n\n" % (one["type"].encode(), json.dumps(one).encode()) for one in events)

    def error(self, status: int, code: str, message: str) -> dict[str, Any]:
        about = {"type": code or ANTHROPIC_TYPES.get(status, "api_error"), "message": message or "The request failed."}
        return {"type": "error", "error": about, "request_id": _id("req")}


def _id(start: str) -> str:
    return f"{start}_{uuid.uuid4().hex[:24]}"


def _tokens(value: Any) -> int:
    """About as many as a model counts: one for four characters."""
    return max(1, len(json.dumps(value)) // 4)


def _pieces(text: str) -> Iterator[str]:
    for start in range(0, len(text), 8):
        yield text[start : start + 8]
