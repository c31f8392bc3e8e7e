"""Requests to the services of others."""

from typing import Any

import httpx

TIMEOUT = 120  # seconds


class ServiceFailed(Exception):
    """Another service did not answer, or said no. The message names it, and holds what it said."""


async def call(service: str, method: str, url: str, token: str = "", **request: Any) -> Any:
    """The JSON that it answers; `request` as httpx takes it: `json`, `data`, `params`."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        async with httpx.AsyncClient(timeout=TIMEOUT, trust_env=False) as client:
            answer = await client.request(method, url, headers=headers, **request)
    except httpx.HTTPError as error:
        raise ServiceFailed(f"{service} does not answer: {type(error).__name__}") from error
    if answer.is_error:
        raise ServiceFailed(f"{service}: {answer.status_code} {_reason(answer)}")
    try:
        return answer.json()
    except ValueError:
        return answer.text


def _reason(answer: httpx.Response) -> str:
    """What it says of the error, in one of the shapes that are usual."""
    try:
        said = answer.json()
    except ValueError:
        return answer.text[:200]
    error = said.get("error_description") or said.get("error", "") if isinstance(said, dict) else ""
    return str(error.get("message", "") if isinstance(error, dict) else error)[:200]
