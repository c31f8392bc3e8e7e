"""Tells a user something: a row in the application, and a POST to whoever brings it to the user's phone."""

from typing import Any

from psycopg.types.json import Jsonb

from chatServer.config import get_settings
from chatServer.database.connection import Pool, rows
from chatServer.services.http_client import call


class NotificationService:
    def __init__(self, db_client: Pool) -> None:
        self._pool = db_client

    async def notify_user(self, user_id: str, title: str, body: str, category: str, metadata: dict[str, Any]) -> None:
        """Posted first: if that fails there is no row, and the job that asked for it is tried again."""
        if url := get_settings().notify_url:
            message = {"user_id": user_id, "title": title, "body": body, "category": category, "metadata": metadata}
            await call("the receiver of notifications", "POST", url, json=message)
        await rows(
            self._pool,
            "insert into notifications (user_id, title, body, category, metadata) values (%s, %s, %s, %s, %s)",
            user_id, title, body, category, Jsonb(metadata),
        )  # fmt: skip
