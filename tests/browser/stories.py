"""Stores in a state worth looking at: nothing yet, a normal night, and one on which a mail relay does not answer."""

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import BaseModel, Field

from treadle import Context, GiveUp, Retry, Treadle
from treadle.engines.values import OVERWRITE, Claim
from treadle.model import new_id
from treadle.model.records import MEMORY, VERSION, Minute, WorkerInfo
from treadle.model.stats import Counts, hour_of
from treadle.testing import FakeClock, run_until_idle

NIGHT = datetime(2026, 3, 27, 2, 0, tzinfo=UTC)
OUTAGE_FROM, MINUTES = 41, 72  # of the night: it is 03:12 when somebody looks
PEOPLE = ("ada@example.org", "grace@example.org", "edsger@example.org", "barbara@example.org", "alan@example.org")


class Address(BaseModel):
    """Where an invoice goes."""

    street: str = Field(max_length=80)
    city: str
    country: str = Field("SE", pattern="^[A-Z]{2}$")


class Invoice(BaseModel):
    """What is printed on an invoice."""

    number: int = Field(ge=1)
    customer: str
    total: float = Field(ge=0)
    address: Address
    lines: list[str] = []
    urgent: bool = False


class Relay:
    """The mail relay, which may be away."""

    away = False


def of_the_shop(handler: Any) -> Any:
    """Let tracebacks say that it lies in the shop's own code, wherever this file is."""
    handler.__code__ = handler.__code__.replace(co_filename="shop/tasks.py")
    return handler


def night_app(url: str, clock: FakeClock) -> tuple[Treadle, Relay]:
    """An app with the tasks of these stories."""
    app, relay = Treadle(url, clock=clock), Relay()

    @app.task(queue="mail", retry=Retry(max_attempts=5, base=30, cap=900))
    @of_the_shop
    def send_email(to: str, subject: str) -> str:
        clock.advance(seconds=0.3)
        if relay.away:
            raise ConnectionRefusedError(f"[Errno 111] mail relay smtp.internal:587 did not answer for {to}")
        return f"250 queued as {to}"

    @app.task(queue="billing", retry=Retry(max_attempts=3, base=5))
    @of_the_shop
    def print_invoice(ctx: Context, invoice: Invoice) -> dict[str, Any]:
        ctx.progress(0.5, "laid out")
        clock.advance(seconds=1.2)
        ctx.add_cost(1200 * invoice.number)
        if invoice.number % 17 == 0:
            raise ValueError(f"invoice {invoice.number}: the total {invoice.total} does not match its lines")
        return {"pages": 1 + invoice.number % 3, "file": f"invoices/{invoice.number}.pdf"}

    @app.task(secret=["card.number"])
    @of_the_shop
    def charge_card(card: dict[str, str], cents: int) -> str:
        clock.advance(seconds=0.4)
        if cents > 90_000:
            raise GiveUp("the bank declined the card: limit exceeded")
        return "captured"

    @app.task
    @of_the_shop
    def sync_user(user: int) -> None:
        clock.advance(seconds=0.05)

    @app.task(queue="reports", retry=Retry(max_attempts=1))
    @of_the_shop
    def nightly_report(day: str = "") -> str:
        clock.advance(seconds=40)
        return "report.pdf"

    return app, relay


def empty(app: Treadle, relay: Relay, clock: FakeClock) -> None:
    """A store in which nothing has happened yet."""


def busy(app: Treadle, relay: Relay, clock: FakeClock) -> None:
    """A night on which everything is well."""
    _night(app, relay, clock, outage=False)


def failing(app: Treadle, relay: Relay, clock: FakeClock) -> None:
    """The night of the outage: the relay is away since 02:41, and it is 03:12 now."""
    _night(app, relay, clock, outage=True)


STORIES: dict[str, Callable[[Treadle, Relay, FakeClock], None]] = {"empty": empty, "busy": busy, "failing": failing}


def _night(app: Treadle, relay: Relay, clock: FakeClock, *, outage: bool) -> None:
    draw = random.Random(7)
    _schedules(app)
    for minute in range(MINUTES):
        at = NIGHT + timedelta(minutes=minute)
        clock.advance(seconds=max(0.0, (at - clock.now()).total_seconds()))
        relay.away = outage and minute >= OUTAGE_FROM
        _count(app, at, relay.away, draw)
        if minute % 4 == 0:
            _enqueue(app, minute, draw)
        run_until_idle(app, queues=["default", "mail", "billing", "reports"])
    for place in range(6):
        app.enqueue("sync_user", {"user": 700 + place})
    app.enqueue("nightly_report", {"day": "2026-03-28"})
    app.tasks["send_email"].using(run_after="3h", tenant="acme").enqueue("ada@example.org", "Your trial ends")
    app.tasks["sync_user"].using(priority=9, lane="vip", key="sync:1").enqueue(1)
    if outage:
        app.pause(
            queue="reports", reason="the disk of the report server is full", actor="grace", until=timedelta(hours=6)
        )
        app.cancel(app.find(task="send_email", state="pending", limit=1).jobs[0].id, actor="ada", reason="sent by hand")
    _workers(app, clock)


def _enqueue(app: Treadle, minute: int, draw: random.Random) -> None:
    tasks = app.tasks
    for place in range(2):
        tasks["send_email"].enqueue(draw.choice(PEOPLE), f"Order {1000 + minute * 3 + place} has left our house")
    address = Address(street="Kungsgatan 1", city="Stockholm")
    number = minute * 2 + 1
    tasks["print_invoice"].using(tenant="acme" if minute % 8 else "globex").enqueue(
        Invoice(
            number=number, customer="Ada Lovelace", total=19.5 * number, address=address, lines=["1 loom", "2 reeds"]
        )
    )
    tasks["charge_card"].enqueue({"number": "4111111111111111", "holder": "Ada"}, draw.choice((1900, 4900, 99_000)))
    tasks["sync_user"].enqueue(minute)


def _schedules(app: Treadle) -> None:
    create = app.schedules.create
    create("nightly-report", "nightly_report", {"day": "today"}, cron="30 2 * * *", tz="Europe/Stockholm")
    create("sync-everybody", "sync_user", {"user": 0}, every="15m")
    create(
        "weekly-digest",
        "send_email",
        {"to": "team@example.org", "subject": "Digest"},
        cron="0 7 * * mon",
        tz="America/New_York",
    )
    create("month-end", "nightly_report", {}, cron="0 1 1 * *", overlap="skip")
    app.schedules.disable("month-end", actor="ada", reason="the books are closed by hand in March")


def _count(app: Treadle, at: datetime, away: bool, draw: random.Random) -> None:
    """What workers have counted in this minute."""
    queues: dict[str, dict[str, object]] = {}
    for queue, task, each in (
        ("mail", "send_email", 60),
        ("billing", "print_invoice", 18),
        ("default", "sync_user", 40),
    ):
        counts = Counts()
        for _ in range(int(each * (0.8 + 0.4 * draw.random()))):
            kind = "retrying" if away and queue == "mail" else "succeeded"
            counts.note(kind, draw.expovariate(1 / (3.0 if away else 0.05)), draw.expovariate(1 / 0.3))
        if away and queue == "mail" and draw.random() < 0.6:
            counts.note("failed", 2.0, 0.4)
        queues[queue] = {task: counts.data()}
    app.engine.save(Minute(hour_of(at), at.minute, "loom-1 0a1b2c3d", queues), before=OVERWRITE)


def _workers(app: Treadle, clock: FakeClock) -> None:
    now, tasks = clock.now(), {**dict.fromkeys(app.tasks, 1), f"{VERSION}0.1.0": 1, MEMORY: 84_100_000}
    began = now - timedelta(hours=9, minutes=12)
    queues = ["default", "mail", "billing"]
    for name, serves, running in (("loom-1", queues, 4), ("loom-2", ["reports", *queues], 1)):
        info = WorkerInfo(name, "app-7.internal", 4127, serves, None, tasks, 8, running, False, began, now, 30.0)
        app.engine.save(info, before=OVERWRITE)
    silent = WorkerInfo("loom-3", "app-9.internal", 88, queues, None, tasks, 8, 0, False, began, now, 30.0)
    app.engine.save(silent._replace(seen_at=now - timedelta(minutes=6)), before=OVERWRITE)
    app.engine.turn([], Claim(new_id(), "loom-1", 4, 600.0, queues, tasks=["sync_user", "send_email"]))


def night_clock() -> FakeClock:
    """A clock at the beginning of the night."""
    return FakeClock(NIGHT)
