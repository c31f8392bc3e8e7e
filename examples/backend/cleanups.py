"""What the server cleans up: four jobs over six tables, their default schedules, and the timer of old."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from threading import Event, Thread
from typing import Annotated

from pydantic import Field

from treadle import Context, NotPossible, Treadle
from treadle.builtin import sql_cleanup
from treadle.builtin.sql_cleanup import Deleted, OldRows, SqlCleanup

log = logging.getLogger("ayb.cleanups")

SESSIONS = [OldRows("_ayb_sessions", "expires_at")]
DELIVERIES = [OldRows("_ayb_webhook_deliveries", "created_at", keep="168h")]
OAUTH = [
    OldRows("_ayb_oauth_tokens", "expires_at", keep="1d"),
    OldRows("_ayb_oauth_tokens", "revoked_at", keep="1d"),
    OldRows("_ayb_oauth_authorization_codes", "expires_at"),
    OldRows("_ayb_oauth_authorization_codes", "used_at", keep="1d"),
]
AUTH = [OldRows("_ayb_magic_links", "expires_at"), OldRows("_ayb_password_resets", "expires_at")]
PRESETS = {
    "stale_session_cleanup": SESSIONS,
    "expired_oauth_cleanup": OAUTH,
    "expired_oauth_token_cleanup": OAUTH,  # names that an older plan had
    "expired_auth_cleanup": AUTH,
    "expired_magic_link_cleanup": AUTH,
    "expired_password_reset_cleanup": AUTH,
}
SCHEDULES = {
    "session_cleanup_hourly": ("stale_session_cleanup", "0 * * * *"),
    "webhook_delivery_prune_daily": ("webhook_delivery_prune", "0 3 * * *"),
    "expired_oauth_cleanup_daily": ("expired_oauth_cleanup", "0 4 * * *"),
    "expired_auth_cleanup_daily": ("expired_auth_cleanup", "0 5 * * *"),
}


def register(app: Treadle) -> None:
    for name, rows in PRESETS.items():
        sql_cleanup.register(app, *rows, name=name)
    deliveries = SqlCleanup(app, *DELIVERIES, name="webhook_delivery_prune")

    @app.task
    def webhook_delivery_prune(ctx: Context, retention_hours: Annotated[int, Field(ge=1, le=87_600)] = 168) -> Deleted:
        return deliveries.run(timedelta(hours=retention_hours), ctx)


def add_default_schedules(app: Treadle) -> None:
    """Make those that are not there yet. One that an operator has changed or disabled stays as it is."""
    for name, (task, cron) in SCHEDULES.items():
        try:
            app.schedules.create(name, task, cron=cron, actor="ayb", reason="a default schedule")
        except NotPossible:
            log.info("the schedule %s is there already", name)


@contextmanager
def pruning(app: Treadle, every: float) -> Iterator[None]:
    """The timer that prunes deliveries while jobs are disabled. It ends with the block, and closes its app."""
    stop, deliveries = Event(), SqlCleanup(app, *DELIVERIES)

    def prune() -> None:
        while not stop.is_set():
            try:
                log.info("the timer has pruned %(deleted)d deliveries", deliveries.run())
            except Exception:
                log.exception("the timer could not prune deliveries")
            stop.wait(every)

    timer = Thread(target=prune, name="pruner", daemon=True)
    timer.start()
    try:
        yield
    finally:
        stop.set()
        timer.join()
        app.close()
