"""A report for every customer, every night at half past two in Berlin; missed nights are made up for."""

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from zoneinfo import ZoneInfo

from treadle import Context, Treadle

DATABASE = "shop.db"  # the shop's tables and the jobs: in one file they can share a transaction
TZ = "Europe/Berlin"
SECONDS = float(os.environ.get("SECONDS", "0"))  # the work for one order; 0 unless you want to watch

TABLES = """
    create table if not exists orders (id integer primary key, customer text, cents int);
    create table if not exists reports (night text, customer text, cents int, primary key (night, customer));
    insert or ignore into orders values (1, 'acme', 500), (2, 'acme', 700), (3, 'acme', 900), (4, 'birch', 300),
        (5, 'birch', 300), (6, 'birch', 650), (7, 'cedar', 1000), (8, 'cedar', 40), (9, 'cedar', 60);
"""


def customers() -> Iterator[dict[str, str]]:
    """Each row becomes a job with attempts of its own, so one customer's trouble does not hold up the others."""
    with closing(sqlite3.connect(DATABASE)) as shop:
        for (customer,) in shop.execute("select distinct customer from orders"):
            yield {"customer": customer}


def write_report(ctx: Context, customer: str) -> None:
    due = ctx.tick or ctx.job.created_at  # the night it was made for, however late it runs
    night = due.astimezone(ZoneInfo(TZ)).date().isoformat()
    with closing(sqlite3.connect(DATABASE)) as shop, shop:
        orders = shop.execute("select cents from orders where customer = ?", [customer]).fetchall()
        for number, _ in enumerate(orders, 1):
            time.sleep(SECONDS)
            ctx.progress(number / len(orders), f"order {number} of {len(orders)}")
            ctx.log.info("%s: order %d of %d", customer, number, len(orders))
        total = sum(cents for (cents,) in orders)
        shop.execute("begin immediate")
        shop.execute("insert or replace into reports values (?, ?, ?)", [night, customer, total])
        ctx.settle(shop, {"night": night, "customer": customer, "cents": total})  # ends the job in the same commit


def nightly(app: Treadle) -> Treadle:
    """Register the task and its schedule with an app: the real one below, or the one of rehearse.py."""
    app.register(
        "nightly_report",
        write_report,
        cron="30 2 * * *",
        tz=TZ,
        for_each=customers,
        misfire="all",  # nights that were missed are made up for, one by one,
        misfire_age="7d",  # up to a week later
    )
    return app


app = nightly(Treadle(f"sqlite:///{DATABASE}"))

if __name__ == "__main__":
    with closing(sqlite3.connect(DATABASE)) as shop:
        shop.executescript(TABLES)
        for night, customer, cents in shop.execute("select * from reports order by night, customer"):
            print(f"{night}  {customer:6} {cents:5} cents")
