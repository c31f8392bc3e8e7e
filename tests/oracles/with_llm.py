"""The openai and anthropic SDKs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anthropic
import openai

from tests.oracles.raising import raises
from treadle.testing import fakes
from treadle.testing.fakes import LlmServer

MESSAGES: Any = [{"role": "user", "content": "Classify this mail."}]
SCHEMA = {"type": "object", "properties": {"to": {"type": "string"}}, "required": ["to"]}
OPENAI_TOOLS: Any = [{"type": "function", "function": {"name": "send_reply", "parameters": SCHEMA}}]
ANTHROPIC_TOOLS: Any = [{"name": "send_reply", "input_schema": SCHEMA}]


@contextmanager
def serving() -> Iterator[tuple[LlmServer, openai.OpenAI, anthropic.Anthropic]]:
    with fakes.llm() as server:
        first = openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.api_key, max_retries=0)
        second = anthropic.Anthropic(base_url=server.url, api_key=server.api_key, max_retries=0)
        with first, second:
            yield server, first, second


def chat(client: openai.OpenAI, **more: Any) -> Any:
    return client.chat.completions.create(**{"model": "gpt-fake", "messages": MESSAGES, **more})


def message(client: anthropic.Anthropic, **more: Any) -> Any:
    return client.messages.create(**{"model": "claude-fake", "messages": MESSAGES, "max_tokens": 100, **more})


def test_a_text_is_said() -> None:
    with serving() as (server, first, second):
        server.say("An invoice.")
        server.say("A question.")
        answer = chat(first)
        choice = answer.choices[0]
        assert (choice.message.content, choice.finish_reason, answer.model) == ("An invoice.", "stop", "gpt-fake")
        assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
        assert answer.created == int(server.clock.now().timestamp())
        said = message(second, system="Be brief.")
        assert (said.content[0].text, said.stop_reason, said.role) == ("A question.", "end_turn", "assistant")
        assert said.usage.output_tokens
        assert [call["model"] for call in server.calls] == ["gpt-fake", "claude-fake"]


def test_answers_fit_the_types_of_the_clients() -> None:
    """The clients build their objects without a look at the fields; here they are validated."""
    with serving() as (server, first, second):
        for text, tools in (("Text", None), ("", {"send_reply": {"to": "ada"}})):
            server.say(text, tools=tools)
            server.say(text, tools=tools)
            raw = first.chat.completions.with_raw_response.create(model="m", messages=MESSAGES, tools=OPENAI_TOOLS)
            openai.types.chat.ChatCompletion.model_validate_json(raw.http_response.text, strict=True)
            more: Any = {"model": "m", "messages": MESSAGES, "max_tokens": 9, "tools": ANTHROPIC_TOOLS}
            anthropic.types.Message.model_validate_json(
                second.messages.with_raw_response.create(**more).text(), strict=True
            )


def test_tools_are_called_and_their_results_taken() -> None:
    with serving() as (server, first, second):
        server.say("I will answer.", tools={"send_reply": {"to": "ada"}})
        called = chat(first, tools=OPENAI_TOOLS).choices[0]
        [call] = called.message.tool_calls
        assert (called.finish_reason, call.function.name, call.function.arguments) == (
            "tool_calls", "send_reply", '{"to": "ada"}',
        )  # fmt: skip
        history = [*MESSAGES, called.message.model_dump(exclude_none=True)]
        with raises(openai.BadRequestError):
            chat(first, messages=[*history, *MESSAGES])
        chat(first, messages=[*history, {"role": "tool", "tool_call_id": call.id, "content": "sent"}])
        server.say(tools={"send_reply": {"to": "ada"}})
        said = message(second, tools=ANTHROPIC_TOOLS)
        assert (said.stop_reason, said.content[0].input) == ("tool_use", {"to": "ada"})
        turn = {"role": "assistant", "content": [block.model_dump() for block in said.content]}
        with raises(anthropic.BadRequestError):
            message(second, messages=[*MESSAGES, turn, *MESSAGES])
        result = {"type": "tool_result", "tool_use_id": said.content[0].id, "content": "sent"}
        message(second, messages=[*MESSAGES, turn, {"role": "user", "content": [result]}])


def test_json_is_json() -> None:
    with serving() as (server, first, _):
        server.say({"kind": "invoice"})
        form: Any = {"type": "json_object"}
        assert chat(first, response_format=form).choices[0].message.content == '{"kind": "invoice"}'
        assert chat(first, response_format=form).choices[0].message.content == "{}"


def test_a_stream_says_the_same() -> None:
    with serving() as (server, first, second):
        for _ in range(2):
            server.say("A text of some length.", tools={"send_reply": {"to": "ada"}})
        with first.chat.completions.stream(model="m", messages=MESSAGES, tools=OPENAI_TOOLS) as stream:
            whole = stream.get_final_completion().choices[0]
        assert (whole.message.content, whole.finish_reason) == ("A text of some length.", "tool_calls")
        assert whole.message.tool_calls[0].function.arguments == '{"to": "ada"}'
        with second.messages.stream(model="m", messages=MESSAGES, max_tokens=100, tools=ANTHROPIC_TOOLS) as said:
            assert "".join(said.text_stream) == "A text of some length."
            end = said.get_final_message()
        assert (end.stop_reason, end.content[1].input) == ("tool_use", {"to": "ada"})


def test_errors_are_the_clients_own() -> None:
    with serving() as (server, first, second):
        for status, kind, other in (
            (400, openai.BadRequestError, anthropic.BadRequestError),
            (429, openai.RateLimitError, anthropic.RateLimitError),
            (500, openai.InternalServerError, anthropic.InternalServerError),
        ):
            server.fail_next(status, times=2, headers={"Retry-After": "2"})
            with raises(kind) as refused:
                chat(first)
            assert refused.value.response.headers["Retry-After"] == "2"
            with raises(other) as denied:
                message(second)
            assert denied.value.body["error"]["type"] == denied.value.type
        server.fail_next(429)
        with raises(openai.RateLimitError) as limited:
            chat(first)
        assert limited.value.code == "rate_limit_exceeded"
        with raises(openai.AuthenticationError):
            chat(first.with_options(api_key="wrong"))
        with raises(anthropic.AuthenticationError):
            message(second.with_options(api_key="wrong"))
        server.fail_next(529)
        with raises(anthropic.InternalServerError) as busy:
            message(second)
        assert busy.value.type == "overloaded_error"


def test_a_client_asks_again_when_it_is_told_to() -> None:
    with serving() as (server, first, second):
        server.fail_next(429, headers={"retry-after-ms": "1"}, times=2)
        assert chat(first.with_options(max_retries=2)).choices[0].message.content == "ok"
        server.drop_next()
        assert message(second.with_options(max_retries=2)).content[0].text == "ok"
        assert (len(server.requests), len(server.calls)) == (5, 3)
