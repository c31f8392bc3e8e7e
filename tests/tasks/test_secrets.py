"""Secrets in payloads: handlers get them, and no text or view shows them."""

import json
import logging
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, NamedTuple

import pytest
from pydantic import AfterValidator, BaseModel, Field, Secret, SecretBytes, SecretStr, field_validator, model_validator
from typing_extensions import TypedDict

from tests.support.marks import any_store
from treadle import Cancelled, Context, Retry, Treadle
from treadle.app.views import worker_view
from treadle.errors import ConfigError, InvalidJob, InvalidPayload
from treadle.model.records import DECLARES, WorkerInfo
from treadle.tasks.payload import Payload
from treadle.tasks.secrets import MASK, Secrets, hide, marked, marks, stand_in
from treadle.testing import run_until_idle

CANARY = "canary-7d41-9c1e"
QUOTED = 'it\'s "new"\nline'


class Card(BaseModel):
    number: SecretStr
    holder: str = "Ada"


class Renamed(BaseModel):
    number: Annotated[SecretStr, Field(alias="cardNumber")]


class Chain(BaseModel):
    key: SecretStr
    after: "Chain | None" = None


class Row(TypedDict):
    pin: SecretStr


@dataclass
class Login:
    password: SecretStr
    user: str = "ada"


S = SecretStr(CANARY)
SHAPES: list[tuple[Any, Any, Any]] = [
    (SecretStr, S, MASK),
    (SecretBytes, SecretBytes(CANARY.encode()), MASK),
    (Secret[int], Secret[int](4711471147), MASK),
    (SecretStr | None, S, MASK),
    (SecretStr | None, None, None),
    (list[SecretStr], [S, S], [MASK, MASK]),
    (tuple[int, SecretStr], (1, S), [MASK, MASK]),
    (dict[str, SecretStr], {"a": S}, {"a": MASK}),
    (dict[str, list[Card]], {"a": [Card(number=S)]}, {"a": [{"number": MASK, "holder": "Ada"}]}),
    (Card, Card(number=S), {"number": MASK, "holder": "Ada"}),
    (Card | None, Card(number=S), {"number": MASK, "holder": "Ada"}),
    (Card | int, Card(number=S), {"number": MASK, "holder": "Ada"}),
    (Renamed, Renamed(cardNumber=S), {"cardNumber": MASK}),
    (Row, {"pin": S}, {"pin": MASK}),
    (Login, Login(S), {"password": MASK, "user": "ada"}),
    (Chain, Chain(key=S, after=Chain(key=S)), {"key": MASK, "after": {"key": MASK, "after": None}}),
    (list[Chain], [Chain(key=S, after=Chain(key=S, after=Chain(key=S)))], None),
]


class Stored(NamedTuple):
    payload_json: str


def payload_of(kind: Any, *secret: str) -> Payload:
    def handler(value, more=0): ...  # type: ignore[no-untyped-def]

    handler.__annotations__ = {"value": kind, "more": int}
    return Payload(handler, "task", secret=[tuple(path.split(".")) for path in secret])


@pytest.mark.parametrize(("kind", "value", "shown"), SHAPES, ids=[str(shape[0]) for shape in SHAPES])
def test_a_secret_is_stored_as_it_is_arrives_and_is_shown_to_nobody(kind: Any, value: Any, shown: Any) -> None:
    payload = payload_of(kind)
    text = payload.encode((value,), {})
    assert "****" not in text
    assert payload.decode(Stored(text)) == {"value": value}
    hidden = payload.secrets.hidden(json.loads(text))
    assert CANARY not in str(hidden)
    if shown is not None:
        assert hidden == {"value": shown}


def test_a_secret_of_which_the_types_say_nothing_is_refused(app: Treadle) -> None:
    @app.task
    def log_in(password: Any) -> None: ...

    with pytest.raises(InvalidPayload, match="password is a secret and would be stored as asterisks"):
        log_in.enqueue(S)


LISTED: list[tuple[str, Any, Any]] = [
    ("value", {"deep": [1]}, MASK),
    ("value.card.number", {"card": {"number": "4", "x": 1}}, {"card": {"number": MASK, "x": 1}}),
    ("value.card.number", {"card": "4111"}, {"card": MASK}),
    ("value.cards.number", {"cards": [{"number": 4}, {"n": 1}]}, {"cards": [{"number": MASK}, {"n": 1}]}),
    ("value.*.pin", {"a": {"pin": 1}, "b": {"pin": None}}, {"a": {"pin": MASK}, "b": {"pin": None}}),
    ("value.**.pin", {"a": {"b": {"pin": 1}}, "pin": 2}, {"a": {"b": {"pin": MASK}}, "pin": MASK}),
    ("*", 1, MASK),
    ("value.pin", True, True),
]


@pytest.mark.parametrize(("path", "value", "shown"), LISTED)
def test_a_task_may_list_its_secrets(path: str, value: Any, shown: Any) -> None:
    secrets = payload_of(Any, path).secrets
    assert secrets.hidden({"value": value}) == {"value": shown}
    assert secrets.hidden("not even an object") == MASK


def test_a_listed_path_may_name_fields_or_their_aliases() -> None:
    class Open(BaseModel):
        number: Annotated[str, Field(alias="cardNumber")]

    assert payload_of(Open, "value.number").secrets.hidden({"value": {"cardNumber": "4"}}) == {
        "value": {"cardNumber": MASK}
    }


@pytest.mark.parametrize(
    ("secret", "words"),
    [
        ("password", "secret: str is not a list of paths"),
        (["pasword"], "secret: the payload has no 'pasword'; it has password"),
        (["card..number"], "is not a path"),
        ([5], "5 is not a path"),
        (5, "int is not a list"),
    ],
)
def test_a_list_of_secrets_that_cannot_be_meant_is_refused(app: Treadle, secret: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):

        @app.task(secret=secret)
        def log_in(password: str) -> None: ...

        log_in.enqueue("x")


# ------------------------------------------------------------------------------------------------- texts


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (CANARY, f"it was {CANARY}!"),
        (QUOTED, f"it was {QUOTED!r}"),
        ("grün ß", "in ASCII " + ascii("grün ß")),
        ("a b/c?d", "https://x/?q=a%20b%2Fc%3Fd"),
        ("a b/c?d", "https://x/?q=a+b%2Fc%3Fd"),
        ('grün "ß"', "as JSON " + json.dumps('grün "ß"', ensure_ascii=False)),
        ("x" * 12 + "middle" * 9 + "y" * 12, "cut: " + "x" * 12 + "middlemid...dle" + "y" * 12),
        ("123", "the code 123."),
    ],
)
def test_a_value_is_taken_out_of_a_text_however_it_is_written(value: str, text: str) -> None:
    shown = hide(text, [value])
    assert MASK in shown
    for form in (value, repr(value)[1:-1], ascii(value)[1:-1], value[:10], value[-10:], "%20b", "+b", "mid"):
        assert form not in shown


def test_a_short_value_is_taken_for_itself_only_as_a_word() -> None:
    assert hide("attempt 12 of 123, code 12", ["12"]) == f"attempt {MASK} of 123, code {MASK}"
    assert hide("nothing", Secrets((("a",),)).values({"a": ["", " ", None, True]})) == "nothing"


def test_a_stand_in_prints_like_the_error_it_stands_for() -> None:
    try:
        try:
            raise KeyError(CANARY)
        except KeyError as error:
            raise ValueError(f"no {CANARY}") from error
    except ValueError as error:
        made = stand_in(error, lambda text: hide(text, [CANARY]))
    assert (type(made).__name__, str(made), made.__traceback__) == ("ValueError", f"no {MASK}", None)
    assert "KeyError" in made.__notes__[0]
    assert CANARY not in made.__notes__[0]


def test_what_a_worker_says_beside_its_tasks_is_not_shown_among_them() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    said = {"send": 1, **marks("send", Secrets((("a",),))), f"{DECLARES}shop": 5}
    worker = WorkerInfo("w", "h", 1, ["default"], None, said, 1, 0, False, now, now, 1.0)
    assert (worker.task_names, worker_view(worker)["tasks"]) == (["send"], {"send": 1})


def test_workers_say_what_is_secret() -> None:
    paths = Secrets((("a b", "*", "c.d"), ("x",)))
    assert marked(marks("send", paths), "send") == paths
    assert marked(marks("send", paths), "sen") == Secrets()


# ------------------------------------------------------------------------------------------ refused and failed


class Strict(BaseModel):
    password: SecretStr
    pin: str = ""

    @field_validator("password")
    @classmethod
    def _long(cls, value: SecretStr) -> SecretStr:
        if len(value.get_secret_value()) < 99:
            raise ValueError(f"{value.get_secret_value()[:6]} is too short")
        return value

    @model_validator(mode="before")
    @classmethod
    def _both(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("pin"):
            raise ValueError(f"what is {data}?")
        return data


@pytest.mark.parametrize(
    "given",
    [
        {"password": CANARY},
        {"password": [CANARY]},
        {"password": {CANARY: CANARY}},
        {"password": CANARY, "pin": CANARY},
        {"password": SecretStr(CANARY)},
        {"pin": CANARY},
    ],
)
def test_a_refused_secret_is_not_repeated(app: Treadle, given: Any) -> None:
    task = app.register("log_in", lambda payload: None, secret=["pin"])
    task.definition.handler.__annotations__["payload"] = Strict
    for call in (lambda: task.enqueue(given), lambda: app.enqueue("log_in", given)):
        with pytest.raises(InvalidPayload) as refused:
            call()
        assert CANARY[:6] not in str(refused.value), refused.value


def test_what_a_validator_raises_of_its_own_refuses_the_payload_and_can_be_found(app: Treadle) -> None:
    def vault(value: SecretStr) -> SecretStr:
        raise RuntimeError(f"the vault does not know {value.get_secret_value()}")

    def broken(value: str) -> str:
        raise RuntimeError(f"no table {value}")

    def log_in(password: Annotated[SecretStr, AfterValidator(vault)]) -> None: ...
    def send(to: Annotated[str, AfterValidator(broken)]) -> None: ...

    tasks = [app.register("log_in", log_in), app.register("send", send)]
    for task, given in zip(tasks, ({"password": CANARY}, {"to": "ada"}), strict=True):
        for call in (task.enqueue, lambda task=task, **given: app.enqueue(task.name, given)):
            with pytest.raises(InvalidPayload, match="a validator raised RuntimeError") as refused:
                call(**given)
            text = "".join(traceback.format_exception(refused.value))
            assert CANARY not in text
            assert ("in vault" if task is tasks[0] else "in broken") in text


@any_store
def test_what_an_attempt_leaves_behind_holds_no_secret(
    app: Treadle, any_store: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    @app.task(retry=Retry(max_attempts=2, base=0, jitter=0), on_failed="alarm", secret=["card.number"])
    def pay(ctx: Context, password: SecretStr, card: dict[str, str], way: str) -> Any:
        ctx.log.info("paying with %s", card["number"])
        ctx.progress(0.5, f"with {password.get_secret_value()}")
        if way == "cancel":
            raise Cancelled(f"not with {card['number']}")
        if way == "result":
            return {"by": card["number"], card["number"]: 1, "again": SecretStr(CANARY)}
        try:
            raise KeyError(card["number"])
        except KeyError as error:
            ctx.log.exception("oh %s", password.get_secret_value())
            raise ValueError(f"{password.get_secret_value()!r} and {card}") from error

    @app.task
    def alarm(error: str) -> None: ...

    jobs = [
        pay.using(run_after=0).enqueue(SecretStr(f"{CANARY}-1"), {"number": f"{CANARY}-2"}, way)
        for way in ("fail", "cancel", "result")
    ]
    run_until_idle(app)
    for job in map(app.get, [job.id for job in jobs]):
        assert CANARY in job.payload_json  # the handler's own
        assert CANARY not in str(job.error), job.error
        assert CANARY not in str(job.progress)
        assert CANARY not in str(app.events(job.id))
        assert CANARY not in str(app.view(job))
        assert app.view(job)["payload"] == {"password": MASK, "card": {"number": MASK}, "way": job.payload["way"]}
    [followed] = app.find(task="alarm").jobs
    assert CANARY not in followed.payload_json
    assert MASK in followed.payload_json
    text = "\n".join(logging.Formatter("%(message)s").format(record) for record in caplog.records)
    assert "oh ***" in text
    assert "ValueError" in text
    assert CANARY not in text
    assert app.get(jobs[2].id).result["again"] == "*" * 10


def test_a_payload_that_is_edited_as_it_was_shown_keeps_its_secrets(app: Treadle) -> None:
    @app.task(secret=["cards.number"])
    def pay(password: SecretStr, cards: list[dict[str, str]], cents: int) -> None: ...

    job = pay.using(run_after="1h").enqueue(S, [{"number": "4111", "holder": "Ada"}], 5)
    shown = app.view(job)["payload"]
    assert shown == {"password": MASK, "cards": [{"number": MASK, "holder": "Ada"}], "cents": 5}
    edited = app.edit(job, payload={**shown, "cents": 6})
    assert edited.payload == {"password": CANARY, "cards": [{"number": "4111", "holder": "Ada"}], "cents": 6}
    assert app.edit(job, payload={**shown, "password": "new"}).payload["password"] == "new"


def test_a_job_with_secrets_may_log_whatever_other_jobs_may(app: Treadle, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    @app.task(secret=["password"], retry=Retry(max_attempts=1))
    def log_in(ctx: Context, password: str) -> None:
        ctx.log.info("%(a)s of it", {"a": password})
        ctx.log.info("%d items", password)
        ctx.log.info("with", extra={"url": f"https://u:{password}@h", "more": [{password: 1}], "number": 7})
        try:
            raise KeyError(password)
        except KeyError as error:
            for exc_info in (sys.exc_info(), 1, True, error):
                ctx.log.error("tried", exc_info=exc_info)  # type: ignore[arg-type]

    job = log_in.enqueue(CANARY)
    run_until_idle(app)
    assert app.get(job.id).error is None
    lines = [record for record in caplog.records if record.name == "treadle.task"]
    texts = [f"{logging.Formatter().format(record)} {vars(record)}" for record in lines]
    assert [text for text in texts if CANARY in text] == []
    assert sum("KeyError" in text for text in texts) == 4
    assert vars(lines[0])["message"] == "*** of it"
    assert (vars(lines[2])["url"], vars(lines[2])["number"]) == ("https://u:***@h", 7)


@pytest.mark.parametrize("unknown_payloads", ["hide", "show"])
def test_a_mask_is_not_stored_by_somebody_who_does_not_know_the_task(
    app: Treadle, make_app: Callable[..., Treadle], unknown_payloads: str
) -> None:
    @app.task(secret=["password"])
    def log_in(user: str, password: str) -> None: ...

    job = log_in.using(run_after="1h").enqueue("ada", CANARY)
    elsewhere = make_app(unknown_payloads=unknown_payloads)
    with pytest.raises(InvalidJob, match="where a secret was hidden"):
        elsewhere.edit(job, payload={**app.view(job)["payload"], "user": "bob"})
    assert elsewhere.edit(job, payload={"user": "bob", "password": "new"}).payload["password"] == "new"


PEOPLE = {"to": [{"name": "Ada", "token": "A"}, {"name": "Bob", "token": "B"}]}


@pytest.mark.parametrize(
    "to",
    [
        [{"name": "Bob", "token": MASK}],
        [{"name": "Bob", "token": MASK}, {"name": "Ada", "token": MASK}],
        [{"name": "Ada", "token": MASK}, {"name": "Bob", "token": MASK}, {"name": "Cy", "token": "C"}],
    ],
    ids=["fewer", "swapped", "more"],
)
def test_a_changed_list_gives_nobody_the_secret_of_another(to: list[Any]) -> None:
    with pytest.raises(InvalidJob, match="in a list that was changed"):
        Secrets((("to", "token"),)).restored({"to": to}, PEOPLE)


def test_a_list_whose_secrets_are_given_may_change() -> None:
    secrets = Secrets((("to", "token"),))
    given = {"to": [{"name": "Cy", "token": "C"}]}
    assert secrets.restored(given, PEOPLE) == given
    one = {"to": [{"name": "Cy", "token": "C"}, {"name": "Bob", "token": MASK}]}
    assert secrets.restored(one, PEOPLE) == {"to": [one["to"][0], PEOPLE["to"][1]]}


def test_a_secret_is_not_found_by_a_text_in_the_payload(app: Treadle) -> None:
    @app.task
    def log_in(user: str, password: SecretStr) -> None: ...

    log_in.enqueue("ada", S)
    assert len(app.find(text="ada").jobs) == 1
    assert app.find(text=CANARY[:8]).jobs == []


def test_a_schedule_that_is_edited_as_it_was_shown_keeps_its_secrets(
    app: Treadle, make_app: Callable[..., Treadle]
) -> None:
    @app.task(secret=["password"])
    def sync(user: str, password: str) -> None: ...

    app.schedules.create("nightly", "sync", {"user": "ada", "password": "hunter22"}, every="1h")
    shown = app.masked_schedule(app.schedules.get("nightly")).payload
    assert shown == {"user": "ada", "password": "***"}

    changed = app.schedules.update("nightly", payload={**shown, "user": "bob"})

    assert changed.payload == {"user": "bob", "password": "hunter22"}
    elsewhere = make_app()  # without the code of the task
    with pytest.raises(InvalidJob, match="where a secret was hidden"):
        elsewhere.schedules.update("nightly", payload={"user": "eve", "password": "***"}, checked=False)
    assert app.schedules.get("nightly").payload == changed.payload


def test_two_secrets_with_one_beginning_are_hidden_whole() -> None:
    long, short = "sk_live_51" + "A" * 30, "sk_live_51BBBBsecretBB"
    assert hide(f"no answer for {short}, nor for {long}", [long, short]) == "no answer for ***, nor for ***"
