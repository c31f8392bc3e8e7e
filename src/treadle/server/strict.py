"""What a form would drop in silence is refused: unknown and repeated parameters, repeated keys, NaN, 1e999."""

import json
import math
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel

from treadle.errors import InvalidInput


class StrictRoute(APIRoute):
    """A route whose body is read by `read_json`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_strictly(request: Request) -> Response:
            return await handle(_StrictRequest(request.scope, request.receive))

        return handle_strictly


class _StrictRequest(Request):
    async def json(self) -> Any:
        return read_json(await self.body())


def read_json(body: bytes) -> Any:
    """The value; json.JSONDecodeError for all that is not JSON in UTF-8, or names a key twice."""
    try:
        return json.loads(body.decode(), object_pairs_hook=_object, parse_constant=_constant, parse_float=_number)
    except json.JSONDecodeError:
        raise
    except UnicodeDecodeError:
        raise json.JSONDecodeError("it must be UTF-8", "", 0) from None
    except (ValueError, RecursionError):  # Python reads no number of more than 4,300 digits
        raise json.JSONDecodeError("a number in it is too long, or it is nested too deep", "", 0) from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise json.JSONDecodeError(f"the key {twice!r:.100} is there twice", "", 0)
    return found


def _constant(name: str) -> Any:
    raise json.JSONDecodeError(f"{name} is not a number of JSON", "", 0)


def _number(text: str) -> float:
    found = float(text)
    if math.isinf(found):
        raise json.JSONDecodeError(f"the number {text:.50} is too large", "", 0)
    return found


def check_query(request: Request) -> None:
    """Refuse parameters that the route does not have, and those that are given twice."""
    known, seen = _parameters(request.scope.get("route")), set[str]()
    for name, _ in request.query_params.multi_items():
        if name not in known:
            there = ", ".join(known) or "none"
            raise InvalidInput(name or "query", f"the parameter {name!r:.100} is not known here; known: {there}")
        if name in seen:
            raise InvalidInput(name, "is given twice; give it once")
        seen.add(name)


def _parameters(route: Any) -> list[str]:
    found: list[str] = []
    for field in route.dependant.query_params if route is not None else ():
        kind = field.field_info.annotation
        whole = isinstance(kind, type) and issubclass(kind, BaseModel)
        found += kind.model_fields if whole else [field.alias]
    return found
