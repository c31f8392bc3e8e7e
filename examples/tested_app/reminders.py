"""A small shop: a receipt for each order, a reminder if nobody pays, and a report every morning."""

from treadle import Context, GiveUp, Retry, Treadle

app = Treadle("sqlite:///reminders.db")  # its tests never open this file

ORDERS: dict[int, str] = {}  # stands for a table: the address of each order that is not paid
OUTBOX: list[str] = []  # stands for a mail server


@app.task(queue="mail", retry=Retry(max_attempts=3, base=60, jitter=0))
def mail(to: str, text: str) -> None:
    if "@" not in to:
        raise GiveUp(f"{to!r} is not an address")
    OUTBOX.append(f"{to}: {text}")


@app.task
def remind(ctx: Context, order: int) -> bool:
    """Remind whoever has not paid by now; whether that was so."""
    if order not in ORDERS:
        return False
    ctx.log.info("order %s is not paid", order)
    mail.enqueue(ORDERS[order], f"order {order} is not paid yet")
    ctx.progress(1.0, "reminded")
    return True


@app.task(cron="0 6 * * *", tz="Europe/Berlin")
async def morning_report(ctx: Context) -> str:
    day = f"{ctx.tick:%d %b}" if ctx.tick else "now"
    return f"{day}: {len(ORDERS)} not paid"


def take_order(order: int, address: str) -> None:
    ORDERS[order] = address
    mail.enqueue(address, f"thank you for order {order}")
    remind.using(run_after="1d").enqueue(order)


def pay(order: int) -> None:
    del ORDERS[order]
