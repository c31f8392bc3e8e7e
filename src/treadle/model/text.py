"""JSON and text that every engine stores and gives back alike."""

import json
import math
import re
from typing import Any

from treadle.errors import InvalidJob
from treadle.model.checks import PAYLOAD_CAP


def json_data(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def json_text(value: Any, field: str, cap: int = PAYLOAD_CAP) -> str:
    """JSON that every engine stores and gives back alike, or InvalidJob saying why this is none."""
    if value is None:
        return "null"
    try:
        text = _encoder.encode(value)
    except RecursionError:
        raise InvalidJob(field, "is nested too deeply for JSON") from None
    except (TypeError, ValueError) as error:
        raise InvalidJob(field, f"cannot be JSON: {error}; return plain data or a Pydantic model") from None
    return check_json(text, field, cap)


def check_json(text: str, field: str, cap: int = PAYLOAD_CAP) -> str:
    """The same text, if it is short enough and free of what some engine refuses."""
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:
        raise InvalidJob(field, "holds half a character (a lone surrogate), which no database stores") from None
    if size > cap:
        raise InvalidJob(field, f"is {size:,} bytes of JSON; the limit is {cap:,}: store it and pass a link")
    if "\0" in text or holds_nul(text):
        raise InvalidJob(field, "holds a NUL character, which not every database stores: remove it")
    return text


def holds_nul(json_text: str) -> bool:
    """Whether some string in this JSON holds a NUL character, written as an escape."""
    return "\\u0000" in json_text and _NUL.search(json_text) is not None


def clean(text: str, cap: int, *, keep_end: bool = False) -> str:
    """Text for people, made storable: NULs and half characters replaced, cut to `cap` characters."""
    text = text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="backslashreplace").decode()
    if len(text) <= cap:
        return text
    return f"[cut] {text[-cap:]}" if keep_end else f"{text[:cap]} [cut]"


def printable(text: object, *, lines: bool = False) -> str:
    """Text with everything a terminal would act on written out, such as \\x1b; `lines` keeps line ends and tabs.

    So nothing that a job or a caller says can pass for another line of a log.
    """
    kept = "\n\t" if lines else ""
    return _UNSAFE.sub(lambda found: found[0] if found[0] in kept else _written(found[0]), str(text))


def _written(character: str) -> str:
    code = ord(character)
    return {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(character, f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")


# C0 and C1 controls, DEL, lone surrogates, and what reorders or hides text: none of them is shown as it is.
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def _plain(value: Any) -> Any:
    """What Pydantic makes of a value json does not know; bytes are refused, for nobody can say their encoding."""
    from pydantic_core import PydanticSerializationError, to_jsonable_python  # noqa: PLC0415 - heavy, seldom needed

    if isinstance(value, bytes | bytearray | memoryview):
        raise TypeError("bytes have no JSON form (base64 them)")
    try:
        plain = to_jsonable_python(value, inf_nan_mode="constants")
    except (PydanticSerializationError, UnicodeDecodeError) as error:
        raise TypeError(str(error)) from None
    if hasattr(value, "model_dump"):
        check_finite(value.model_dump())
    return plain


def check_finite(value: Any) -> None:
    """Refuse NaN and infinity anywhere in this data: JSON has none, and Pydantic would write null in their place."""
    match value:
        case float() if not math.isfinite(value):
            raise ValueError(f"{value} has no JSON form")
        case dict():
            for item in value.values():
                check_finite(item)
        case list() | tuple() | set() | frozenset():
            for item in value:
                check_finite(item)
        case _:
            pass


_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain)
