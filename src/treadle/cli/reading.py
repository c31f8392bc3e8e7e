"""What the words on the command line mean; what is wrong with them is said before any store is opened."""

import json
import sys
from typing import Any

from treadle.errors import InvalidJob

EXAMPLE = """write an object such as '{"name": "Ada"}'"""


def payload_from(text: str, field: str) -> dict[str, Any]:
    """A payload as data, `-` reads stdin; InvalidJob of this field if it is no JSON object."""
    if text == "-":
        text = sys.stdin.read()

    def no_constant(name: str) -> Any:
        raise InvalidJob(field, f"is no JSON: {name} is not a value of JSON")

    def no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            raise InvalidJob(field, f"names {next(name for name in names if names.count(name) > 1)!r} twice")
        return found

    try:
        value = json.loads(text, parse_constant=no_constant, object_pairs_hook=no_twins)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise InvalidJob(field, f"is no JSON: {error.msg} at {where}; {EXAMPLE}") from None
    except RecursionError:
        raise InvalidJob(field, "is nested too deeply for JSON") from None
    except InvalidJob:
        raise
    except ValueError as error:  # a number of more digits than Python reads
        raise InvalidJob(field, f"is no JSON: {error}") from None
    if not isinstance(value, dict):
        kind = {list: "an array", str: "a string", type(None): "null", bool: "true or false"}.get(
            type(value), "a number"
        )
        raise InvalidJob(field, f"""must be a JSON object such as {{"name": "Ada"}}, not {kind}""")
    return value


def truth_from(text: str, option: str) -> bool:
    """`true` or `false`, and nothing else."""
    try:
        return {"true": True, "false": False}[text.strip().lower()]
    except KeyError:
        raise InvalidJob(option, f"{text!r} is neither true nor false; write {option} false") from None
