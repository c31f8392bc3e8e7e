"""What a form of a page has sent: text by field, read into the form that the API takes."""

from typing import Annotated, Any, TypeVar
from urllib.parse import parse_qsl

from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError

from treadle.errors import InvalidInput

MOST_FIELDS = 1000
AROUND = 10  # more that a form may have which keeps another one
FormT = TypeVar("FormT", bound=BaseModel)


class PostedFields(dict[str, str]):
    """Fields of a form, without those that were left empty; a field that came twice is in `lists`."""

    lists: dict[str, list[str]]

    def number(self, name: str) -> int | None:
        """A whole number, or None if there is none."""
        text = self.get(name)
        if text is None:
            return None
        try:
            return int(text)
        except ValueError:
            raise InvalidInput(name, f"{text!r:.50} is not a whole number") from None

    def demand_reason(self, why: str) -> None:
        """Refuse a form without a reason; `why` says why one is wanted."""
        if not self.get("reason", "").strip():
            raise InvalidInput("reason", why)


async def pairs_of(request: Request) -> list[tuple[str, str]]:
    """The fields of a form, as they came."""
    try:
        text = (await request.body()).decode()
        return parse_qsl(text, keep_blank_values=True, max_num_fields=MOST_FIELDS + AROUND, errors="strict")
    except ValueError:
        raise InvalidInput("body", "is not a form in UTF-8 with up to 1,000 fields; load the page again") from None


async def _posted(request: Request) -> PostedFields:
    pairs = await pairs_of(request)
    found = PostedFields({name: value for name, value in pairs if value})
    found.lists = {}
    for name, value in pairs:
        found.lists.setdefault(name, []).append(value)
    return found


Posted = Annotated[PostedFields, Depends(_posted)]


def read_into(form: type[FormT], **values: Any) -> FormT:
    """The API's form of these values, without those that are None; refused as the API refuses it."""
    try:
        return form.model_validate({name: value for name, value in values.items() if value is not None})
    except ValidationError as error:
        raise RequestValidationError([{**item, "loc": ("body", *item["loc"])} for item in error.errors()]) from None
