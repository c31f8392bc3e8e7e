"""A language model behind OpenAI's chat completions."""

from typing import Any

from chatServer.config import get_settings
from chatServer.services.http_client import call


async def ask(system: str, prompt: str, **more: Any) -> dict[str, Any]:
    """The message that the model answers: `content`, and `tool_calls` if it calls the tools in `more`."""
    settings = get_settings()
    body = {
        "model": settings.llm_model,
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": prompt}],
        **more,
    }
    url = f"{settings.llm_url}/v1/chat/completions"
    answer = await call("the language model", "POST", url, settings.llm_api_key, json=body)
    message: dict[str, Any] = answer["choices"][0]["message"]
    return message
