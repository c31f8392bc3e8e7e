"""What is enqueued is what arrives: a payload that would be read as another one is refused, by name, when enqueued."""

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import (
    AfterValidator,
    AliasGenerator,
    AliasPath,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PrivateAttr,
    model_validator,
)
from pydantic.alias_generators import to_camel
from typing_extensions import TypedDict

from tests.tasks.odd import KINDS, VALUES
from tests.tasks.test_plain_payloads import shapes
from treadle import ConfigError, InvalidPayload, State, Task, Treadle
from treadle.tasks.payload import Payload
from treadle.tasks.round_trip import difference
from treadle.testing import run_until_idle


class Message(BaseModel):
    text: str = "hi"
    token: str = Field("", exclude=True)


class Needed(BaseModel):
    token: str = Field(exclude=True)


class Base(BaseModel):
    a: int = 1


class Special(Base):
    more: str = "more"


class Same(Base):
    def twice(self) -> int:
        return self.a * 2


class Holder(BaseModel):
    one: Base = Base()
    each: list[Base] = []


@dataclass
class Point:
    x: int


@dataclass
class Space(Point):
    z: int = 0


@dataclass
class Counted:
    x: int
    count: int = field(default=0, init=False)


counted = Counted(1)
counted.count = 5


class Camel(BaseModel):
    model_config = ConfigDict(alias_generator=AliasGenerator(serialization_alias=to_camel))
    user_id: int
    full_name: str = ""


class Uid(BaseModel):
    user_id: int = Field(0, serialization_alias="userId")


class Torn(BaseModel):
    user_id: int = Field(validation_alias="uid", serialization_alias="userId")


class FromPath(BaseModel):
    user_id: int = Field(validation_alias=AliasPath("user", "id"))


class Mapped(BaseModel):
    """Its keys are written as aliases, and a validator of its own knows how to read those."""

    user_id: int = Field(serialization_alias="userId")

    @model_validator(mode="before")
    @classmethod
    def _names(cls, data: Any) -> Any:
        return {"user_id": data["userId"]} if isinstance(data, dict) and "userId" in data else data


class Level(IntEnum):
    LOW = 1


class Kind(Enum):
    TEXT = "text"


class Shape(TypedDict):
    kind: Kind
    tags: set[str]


class Private(BaseModel):
    a: int = 1
    _seen: int = PrivateAttr(0)


class Stamped(BaseModel):
    model_config = ConfigDict(ser_json_bytes="base64")
    data: bytes


Rounded = Annotated[float, PlainSerializer(lambda value: round(value, 1))]
Doubled = Annotated[int, AfterValidator(lambda value: value * 2)]
Stripped = Annotated[str, AfterValidator(str.strip)]
Grid = dict[tuple[int, int], str]


def task_of(app: Treadle, annotation: Any, seen: list[Any]) -> Task[..., Any]:
    def handler(value, n: int = 0):
        seen.append(value)

    handler.__annotations__["value"] = annotation
    return app.register("handler", handler)


# ---------------------------------------------------------------------------------------- made right, or refused


ARRIVES: list[tuple[Any, Any]] = [
    (Camel, Camel(user_id=1, full_name="Ada")),
    (list[Camel], [Camel(user_id=1)]),
    (Uid, Uid(user_id=5)),
    (Mapped, Mapped(user_id=5)),
    (dict[Kind, int], {Kind.TEXT: 1}),
    (dict[int, int], {1: 2}),
    (dict[UUID, int], {UUID(int=5): 2}),
    (dict[datetime, int], {datetime(2026, 1, 1, tzinfo=UTC): 2}),
    (Shape, {"kind": Kind.TEXT, "tags": {"a"}}),
    (Message, Message(text="no token")),
    (Base | Special, Special(more="x")),
    (Base, Same(a=3)),
    (Holder, Holder(one=Base(a=2), each=[Base()])),
    (Point | Space, Space(1, 2)),
    (Private, Private()),
    (Stripped, "a"),
    (Path, Path("/tmp")),
    (tuple[int, str], (1, "a")),
    (Decimal, Decimal("1.50")),
    (timedelta, timedelta(microseconds=1)),
    (Literal["a", 1], 1),
    (Any, {"when": [1, None]}),
]


@pytest.mark.parametrize(("annotation", "value"), ARRIVES, ids=range(len(ARRIVES)))
def test_a_value_arrives_as_it_was_given(app: Treadle, annotation: Any, value: Any) -> None:
    seen: list[Any] = []
    task_of(app, annotation, seen).enqueue(value)
    [job] = run_until_idle(app)
    assert job.state is State.SUCCEEDED, job.error
    assert seen[0] == value or isinstance(value, Same)


REFUSED: list[tuple[Any, Any, str]] = [
    (Message, Message(token="t0k"), r"^value\.token: .*its exclude keeps token out of JSON; take that away"),
    (Needed, Needed(token="t0k"), r"value\.token: Field required.*its exclude keeps token out of JSON"),
    (Base, Special(), r"^value: the task takes Base, and this is a Special: its more would be lost; annotate Special"),
    (Holder, Holder(each=[Base(), Special()]), r"^value\.each\.1: .* its more would be lost"),
    (list[Base], [Special()], r"^value\.0: .* its more would be lost"),
    (dict[str, Base], {"k": Special()}, r"^value\.k: .* its more would be lost"),
    (Point, Space(1, 2), r"^value: the task takes Point, and this is a Space: its z would be lost"),
    (Torn, {"uid": 5}, r"value\.uid: Field required.*user_id is written as 'userId'.*one alias for both"),
    (FromPath, {"user": {"id": 5}}, r"Field required.*user_id is written as 'user_id'.*one alias for both"),
    (dict[Literal[1, 2], int], {1: 2}, r"is not read as it is written by task handler.*value\.1"),
    (Grid, {(1, 2): "x"}, r"is not read as it is written by task handler"),
    (Rounded, 1.25, r"^value: it would arrive as another value"),
    (Doubled, 2, r"^value: it would arrive as another value"),
    (Counted, counted, r"count: .*count is not both a field and an argument of its class"),
    (Special | Base, Base(a=2), r"^value: it would arrive as Special, not as Base"),
    (set[Any], {(1, 2)}, r"is not read as it is written by task handler"),
    (dict[str, int], {"\ud800": 1}, r"^value: its keys would arrive as others"),
    (Stamped, Stamped(data=b"\xff"), r"^value\.data: it would arrive as another value"),
]


@pytest.mark.parametrize(("annotation", "value", "message"), REFUSED, ids=range(len(REFUSED)))
def test_a_value_that_would_be_lost_is_refused_by_name_when_it_is_enqueued(
    app: Treadle, annotation: Any, value: Any, message: str
) -> None:
    with pytest.raises(InvalidPayload, match=message):
        task_of(app, annotation, []).enqueue(value)
    assert app.count()[State.PENDING] == 0


def test_a_lost_value_is_not_shown_because_it_may_be_a_secret(app: Treadle) -> None:
    with pytest.raises(InvalidPayload) as refused:
        task_of(app, Message, []).enqueue(Message(token="t0k"))
    assert "t0k" not in str(refused.value)


def test_a_key_that_is_a_number_of_an_enum_arrives_or_is_refused(app: Treadle) -> None:
    """Older versions of Pydantic do not read it back."""
    seen: list[Any] = []
    try:
        task_of(app, dict[Level, int], seen).enqueue({Level.LOW: 1})
    except InvalidPayload as error:
        assert "is not read as it is written" in str(error)  # noqa: PT017
    else:
        run_until_idle(app)
        assert seen == [{Level.LOW: 1}]


def test_a_subclass_that_is_made_after_the_first_job_is_seen_too(app: Treadle) -> None:
    class Late(BaseModel):
        a: int = 1

    task = task_of(app, Late, [])
    task.enqueue(Late())

    class Later(Late):
        b: int = 2

    with pytest.raises(InvalidPayload, match="its b would be lost"):
        task.enqueue(Later())
    task.enqueue(Late())


def test_a_whole_model_is_compared_too_and_so_is_each_of_many(app: Treadle) -> None:
    def handler(message: Message) -> None: ...

    task = app.task(handler)
    with pytest.raises(InvalidPayload, match=r"^token: "):
        task.enqueue(Message(token="t0k"))
    with pytest.raises(InvalidPayload, match=r"^call 1: token: "):
        task.enqueue_many([(Message(),), (Message(token="t0k"),)])
    assert app.count()[State.PENDING] == 0


def test_an_argument_that_will_not_be_compared_is_taken(app: Treadle) -> None:
    class Array:
        def __eq__(self, other: object) -> Any:
            raise ValueError("the truth value of an array is ambiguous")

        __hash__ = None  # type: ignore[assignment]

    kind = Annotated[Any, AfterValidator(lambda _: Array()), PlainSerializer(lambda _: [1])]
    seen: list[Any] = []
    task_of(app, kind, seen).enqueue([1])
    run_until_idle(app)
    assert isinstance(seen[0], Array)


# ------------------------------------------------------------------------------------------------ only where needed


def plain(a: int, b: str | None, c: list[float], d: dict[str, bool], e: datetime, f: int | str) -> None: ...


def with_models(a: Holder, b: Point, c: Kind, d: UUID, e: Shape, f: tuple[int, ...]) -> None: ...


@pytest.mark.parametrize("handler", [plain, with_models])
def test_plain_types_are_never_read_back(handler: Callable[..., None]) -> None:
    assert not Payload(handler, "task")._trip.doubtful


def test_types_without_classes_take_the_straight_way() -> None:
    payload = Payload(plain, "task")
    assert payload._text == payload._text_of


@pytest.mark.parametrize("kind", KINDS, ids=range(len(KINDS)))
def test_what_is_not_checked_arrives_as_it_was_given(kind: Any) -> None:
    for payload in shapes(kind):
        name = payload._by_place[-1]
        for value in VALUES:
            given = value if payload.single else {"first": 1, name: value} if name != "value" else {name: value}
            try:
                valid = payload._validate(given)
                text = payload._text(valid)
            except Exception:  # noqa: S112 - it is refused, as it may be
                continue
            if not payload._trip.in_doubt():
                assert difference(valid, payload._validate_json(text), payload._trip) is None, (kind, value)


# ---------------------------------------------------------------------------------------------- names in errors


@pytest.mark.parametrize(
    "value", [lambda: 1, threading.Lock(), b"\xff", math.nan, object()], ids=lambda value: type(value).__name__
)
def test_an_argument_without_a_json_form_is_named(app: Treadle, value: Any) -> None:
    def handler(first, second=None):
        pass

    with pytest.raises(InvalidPayload, match=r"^second: cannot be JSON"):
        app.task(handler).enqueue(1, second=value)


def test_a_parameter_whose_annotation_has_no_json_form_is_named(app: Treadle) -> None:
    def handler(first: int, lock: type(threading.Lock())) -> None: ...  # type: ignore[valid-type]

    with pytest.raises(ConfigError, match="parameter lock: an annotation has no JSON form"):
        app.task(handler).enqueue(1, 2)
