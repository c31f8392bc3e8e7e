"""What a value of a setting may be: the types of the fields, each with its range."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from treadle.errors import InvalidInput
from treadle.model import MESSAGE_CAP, State, check_name, clean
from treadle.model.clock import LONGEST_DURATION, Duration, span, unbounded_seconds
from treadle.model.records import ANY

DAY = 86_400.0  # seconds
HOUR = 3_600.0
MOST_BUDGET = 10**15  # millionths

# Ranges that ge and le of a field cannot say.
URLS = "sqlite:///file.db, postgresql://… or dynamodb://table"
AGES = f"from 0s to {span(LONGEST_DURATION)}, or forever"
NAMES = "a list of at least one name"
BUDGETS = f"a table of tenants, each from 0 to {MOST_BUDGET:,}"
TASK_AGES = f"a table of tasks, each a table of succeeded, failed or cancelled: {AGES}"
MESSAGES = f"text of at most {MESSAGE_CAP:,} characters, without NUL"


def _duration(value: Duration) -> float:
    try:
        return unbounded_seconds(value, "")
    except InvalidInput as error:
        raise ValueError(error.problem) from None


def _age(value: Duration | None) -> float | None:
    if value is None or (isinstance(value, str) and value.strip().lower() == "forever"):
        return None
    return _duration(value)


def _number(value: object) -> object:
    """Neither true, which Python takes for 1, nor 3.0: whoever wrote it meant something else."""
    if isinstance(value, bool | float):
        raise ValueError(f"{value!r} is not a whole number")
    return value


def _message(value: str) -> str:
    if clean(value, MESSAGE_CAP) != value:
        raise ValueError("is too long, or holds what some store cannot keep")
    return value


def _name(value: str) -> str:
    try:
        check_name("", value)
    except InvalidInput as error:
        raise ValueError(error.problem) from None
    return value


def _lane(value: str) -> str:
    return value if value == "" else _name(value)


def _tenant(value: str) -> str:
    return value if value == ANY else _name(value)


def _store_url(value: object) -> object:
    """A URL as SQLAlchemy has it, an object or text that names a driver, as we write it."""
    if callable(render := getattr(value, "render_as_string", None)):
        value = render(hide_password=False).replace(" ", "%20")  # the one character that it leaves
    return re.sub(r"^(postgres|postgresql|sqlite)\+\w+://", r"\1://", value) if isinstance(value, str) else value


StoreUrl = Annotated[str, BeforeValidator(_store_url)]
Seconds = Annotated[float, BeforeValidator(_duration)]
Age = Annotated[Annotated[float, Field(ge=0, le=LONGEST_DURATION)] | None, BeforeValidator(_age)]
Number = Annotated[int, BeforeValidator(_number)]
Message = Annotated[str, AfterValidator(_message)]
Queue = Annotated[str, AfterValidator(_name)]
Lane = Annotated[str, AfterValidator(_lane)]
Tenant = Annotated[str, AfterValidator(_tenant)]
TaskName = Annotated[str, AfterValidator(_name)]
Budget = Annotated[int, BeforeValidator(_number), Field(ge=0, le=MOST_BUDGET)]
Ended = Literal[State.SUCCEEDED, State.FAILED, State.CANCELLED]


def setting(default: Any, description: str, example: Any, *, range: str | None = None, **limits: Any) -> Any:
    """A field with everything that its user must know; `range` is for what ge, le and the type cannot say.

    `example` is a value as treadle.toml has it.
    """
    extra: dict[str, Any] = {} if range is None else {"range": range}
    return Field(default=default, description=description, examples=[example], json_schema_extra=extra, **limits)
