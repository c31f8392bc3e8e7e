"""Reminders: which are due, which were sent, and when they come again."""

from typing import Any
from uuid import UUID

from chatServer.database.connection import Pool, rows

AT_ONCE = 500
STEPS = {"daily": "1 day", "weekly": "1 week", "monthly": "1 month"}


class ReminderService:
    def __init__(self, db_client: Pool) -> None:
        self._pool = db_client

    async def due(self) -> list[dict[str, Any]]:
        """Those that should have been sent by now; the rest of a crowd waits for the next time."""
        statement = (
            "select * from reminders where status = 'pending' and remind_at <= now() order by remind_at limit %s"
        )
        return await rows(self._pool, statement, AT_ONCE)

    async def get_reminder(self, reminder_id: str, user_id: str) -> dict[str, Any] | None:
        """The reminder of this user, unless it was sent already: so a second job for it finds nothing to do."""
        try:
            id = UUID(str(reminder_id))
        except ValueError:
            return None
        statement = "select * from reminders where id = %s and user_id = %s and status = 'pending'"
        return next(iter(await rows(self._pool, statement, id, user_id)), None)

    async def mark_sent(self, reminder_id: UUID) -> None:
        await rows(self._pool, "update reminders set status = 'sent', sent_at = now() where id = %s", reminder_id)

    async def handle_recurrence(self, reminder: dict[str, Any]) -> None:
        """The next one, at the first time of its rhythm that is still to come; once, however often this is called."""
        step = STEPS.get(reminder["recurrence"] or "")
        if step is None:
            return
        await rows(
            self._pool,
            "insert into reminders (user_id, title, body, recurrence, follows, remind_at)"
            " select r.user_id, r.title, r.body, r.recurrence, r.id, min(at)"
            " from reminders r, generate_series(r.remind_at, greatest(now(), r.remind_at) + %s::interval * 2, %s) at"
            " where r.id = %s and at > greatest(now(), r.remind_at) group by r.id on conflict (follows) do nothing",
            step, step, reminder["id"],
        )  # fmt: skip
