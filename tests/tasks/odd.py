"""Odd values and odd shapes, for whoever writes them as JSON."""

import math
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Annotated, Any, Literal, NamedTuple
from uuid import UUID

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    RootModel,
    SecretStr,
    computed_field,
    field_serializer,
)
from typing_extensions import TypedDict


class Word(StrEnum):
    A = "a"


class Number(IntEnum):
    ONE = 1


class Mixed(Enum):
    TEXT = "a"
    NUMBER = 1
    FLOAT = 1.5
    NAN = math.nan


class Plain(Enum):
    TEXT = "a"
    NUMBER = 1


class OddText(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "another"


class OddInt(int):
    def __repr__(self) -> str:
        return "another"

    __str__ = __repr__


class OddFloat(float):
    def __repr__(self) -> str:
        return "another"


@dataclass
class Point:
    x: int = 1
    y: float = 1e-7


class Pair(NamedTuple):
    a: int = 1
    b: str = "b"


class Inner(BaseModel):
    n: int = 1
    note: str | None = None


class Derived(Inner):
    more: str = "more"


class Deep(BaseModel):
    inner: Inner = Inner()
    each: list[Inner] = []
    by_name: dict[str, Inner] = {}
    when: datetime | None = None
    id: UUID | None = None
    price: Decimal = Decimal("1.50")
    word: Word = Word.A
    plain: Plain = Plain.TEXT
    flag: bool = False
    texts: list[str] = []
    numbers: dict[str, int] = {}


class Floats(BaseModel):
    x: float = 1.0
    each: list[float] = []


class Renamed(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    user_id: int = Field(1, alias="userId")
    other: str = Field("x", validation_alias=AliasChoices("o", "p"), serialization_alias="o")


class Clash(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    a: int = Field(1, serialization_alias="same", validation_alias="a")
    b: int = Field(2, serialization_alias="same", validation_alias="b")


class Left(BaseModel):
    kept: int = 1
    left: str = Field("out", exclude=True)


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int = 1


class Total(BaseModel):
    net: int = 1

    @computed_field
    @property
    def gross(self) -> int:
        return self.net * 2


class Custom(BaseModel):
    n: int = 1

    @field_serializer("n")
    def _n(self, value: int) -> str:
        return f"<{value}>"


class Constants(BaseModel):
    model_config = ConfigDict(ser_json_inf_nan="constants", ser_json_timedelta="float")
    x: float = 1.0
    d: timedelta = timedelta(seconds=1.5)


class Tree(BaseModel):
    n: int = 1
    leaves: "list[Tree]" = []


class Secret(BaseModel):
    password: SecretStr = SecretStr("x")
    note: str = ""


class Whole(RootModel[list[int]]):
    pass


class Later(BaseModel):
    model_config = ConfigDict(defer_build=True)
    n: int = 1


class Shape(TypedDict, total=False):
    a: int
    b: list[str]


def mutated(model: type[BaseModel], **values: Any) -> BaseModel:
    """An instance whose attributes nobody has checked."""
    return model.model_construct(**values)


VALUES: list[Any] = [
    "a", "", "\u2028\x7f\x1f\b\f\n\r\t\"\\/é😀", "\0", "a\\u0000b", "\\\\u0000", "\ud800", "*" * 10,
    "x" * 50 + "*" * 12, "null", "1e5", "x" * 5000, "9" * 20, "é" * (512 * 1024), "x" * (1024 * 1024 - 2),
    "x" * (1024 * 1024 + 9), "nan", "2026-01-01", "1", "1.5", "true", 0, 1, -1, 2**53, 2**63, 2**70, 10**16, 10**17,
    10**699, 10**4400, True, False, None, 0.0, -0.0, 1.0, 1.5, 0.1, 1e15, 1e16, 1e17, 1.5e16, 123456789012345680.0,
    1e-4, 1e-5, 1.5e-5, 1e22, 1e300, 5e-324, math.pi, math.nan, math.inf, -math.inf, Word.A, Number.ONE, Mixed.TEXT,
    Mixed.FLOAT, Mixed.NAN, Plain.TEXT, Plain.NUMBER, OddText("x"), OddInt(7), OddFloat(2.5), b"x", b"\xff",
    bytearray(b"x"), [], [1], [1, "2"], [1.0, 1e-5], [math.nan], [None], ["\0"], [True], ["a", "b"], (1, 2), (), {1},
    frozenset({1}), [[1]], [[1.5]], {}, {"a": 1}, {"a": "x"}, {"a": 1.5}, {"a": None}, {"a": math.nan}, {1: 2},
    {None: 1}, {True: 1}, {1.5: 1}, {Word.A: 1}, {OddText("q"): 1}, {"\0": 1}, {"\ud800": 1}, {"é": 1},
    {"a": {"b": [1, {"c": None}]}}, {"a": 1, "b": ["x"]}, {"b": ["x"], "a": 1}, {"x": 1}, {"n": 2}, {"n": "3"},
    {"n": 1, "extra": 1}, {"n": None}, {"n": 1.5}, Decimal("1.50"), Decimal("NaN"), Decimal("1E+5"),
    Decimal("Infinity"), datetime(2026, 3, 1, 12, tzinfo=UTC),
    datetime(2026, 3, 1, 12, 0, 0, 5, UTC).replace(tzinfo=None),
    datetime(2026, 3, 1, tzinfo=timezone(timedelta(hours=5, minutes=30))), date(2026, 3, 1), time(1, 2, 3, 4),
    time(1, tzinfo=UTC), timedelta(seconds=5), timedelta(microseconds=1), UUID(int=5), Point(), Pair(), object(),
    range(3), iter([1]), complex(1, 2), ..., int, print, Inner(), Inner(n=2, note="x"), Derived(), Deep(),
    Deep(inner=Derived(), each=[Inner(), Derived()]), Floats(), Floats(x=1e-7), Floats(x=math.nan), Renamed(),
    Clash(), Left(), Open(), Open.model_validate({"a": 1, "b": 1.5}), Total(), Custom(), Constants(),
    Constants(x=math.nan), Tree(leaves=[Tree()]), Secret(), Secret(note="*" * 10), Whole([1]), Later(),
    mutated(Inner, n="text"), mutated(Inner, n=1.5), mutated(Inner, n=math.nan), mutated(Inner, n=True),
    mutated(Inner, n=OddInt(3)), mutated(Inner, n=None), mutated(Inner), mutated(Inner, n=Number.ONE),
    mutated(Inner, n=1, note=Word.A), mutated(Inner, n=1, note=5), mutated(Inner, n=1, note=b"x"),
    mutated(Inner, n=1, note=OddText("x")), mutated(Inner, n=10**5000), mutated(Inner, n=1, note="\ud800"),
    mutated(Inner, n=1, more=1.5), mutated(Deep, texts=[1]), mutated(Deep, texts=("a",)), mutated(Deep, texts="abc"),
    mutated(Deep, texts=[Word.A, OddText("t")]), mutated(Deep, numbers={1: 2}), mutated(Deep, numbers={"a": 1.5}),
    mutated(Deep, numbers={"a": True}), mutated(Deep, numbers={None: 1}), mutated(Deep, when="2026"),
    mutated(Deep, when=date(2026, 1, 1)), mutated(Deep, when=5), mutated(Deep, price=1.5),
    mutated(Deep, price=Decimal("NaN")), mutated(Deep, price="1"), mutated(Deep, word="a"), mutated(Deep, word=1.5),
    mutated(Deep, plain="a"), mutated(Deep, plain=Mixed.NAN), mutated(Deep, plain=1e-7), mutated(Deep, id="x"),
    mutated(Deep, id=5), mutated(Deep, flag=1), mutated(Deep, flag="x"), mutated(Deep, flag=None),
    mutated(Deep, inner={"n": 1}), mutated(Deep, inner=None), mutated(Deep, each=[{"n": 1}]),
    mutated(Deep, each=[Floats()]), mutated(Deep, by_name={1: Inner()}), mutated(Deep, inner=Total()),
    mutated(Floats, x=1), mutated(Floats, x=Decimal("1.50")), mutated(Floats, x="1"), mutated(Floats, x=True),
    mutated(Floats, each=[1, 2]), mutated(Floats, each=[Decimal(1)]),
]  # fmt: skip

KINDS: list[Any] = [
    str, int, float, bool, None, bytes, Any, object, list, dict, set, tuple, datetime, date, time, timedelta, UUID,
    Decimal, Word, Number, Mixed, Plain, Literal["a", 1, None], Literal[Plain.TEXT], str | None, int | None,
    float | None, int | str, int | float, list[str], list[int], list[float], list[Any], list[int | None],
    list[float | None], list[list[int]], list[list[float]], set[int], frozenset[int], tuple[int, ...],
    tuple[int, str], dict[str, int], dict[str, str], dict[str, float], dict[str, Any], dict[int, int],
    dict[str, str | None], dict[str, list[int]], dict[Word, int], dict[str, float | None],
    Annotated[int, Field(ge=0)], Annotated[str, Field(max_length=3)],
    Annotated[str, AfterValidator(lambda value: 1.5)], Annotated[int, BeforeValidator(lambda value: 5)],
    Annotated[int, PlainSerializer(lambda value: math.nan)], Annotated[float, Field(allow_inf_nan=False)],
    Annotated[Decimal, Field(allow_inf_nan=True)], Point, Pair, Shape, list[Shape], Inner, Derived, Deep, Floats,
    Renamed, Clash, Left, Open, Total, Custom, Constants, Tree, Secret, Whole, Later, SecretStr, list[Inner],
    dict[str, Inner], Inner | None, Inner | Floats, list[Floats],
]  # fmt: skip
