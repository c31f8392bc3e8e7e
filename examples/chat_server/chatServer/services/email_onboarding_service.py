"""Learns from a new mailbox what the assistant should know of its user."""

from typing import Any
from uuid import UUID

from chatServer.config import get_settings
from chatServer.database.connection import get_database_manager, rows
from chatServer.services import llm_service
from chatServer.services.http_client import ServiceFailed, call

MAILS = 10
SYSTEM = "Say in a few sentences what these mails tell of the person who gets them."


class EmailOnboardingService:
    """Run twice, it leaves one profile."""

    def __init__(self) -> None:
        self._pool = get_database_manager().pool

    async def process_job(self, job: dict[str, Any]) -> dict[str, Any]:
        """What came of it: `success`, and `output` or `error`."""
        connection = await self._connection(job["connection_id"], job["user_id"])
        if connection is None:
            return {"success": False, "error": f"Connection {job['connection_id']} not found"}
        try:
            mails = await self._mails(connection["refresh_token"])
            answer = await llm_service.ask(SYSTEM, "\n\n".join(mails) or "There are no mails.")
        except ServiceFailed as error:
            return {"success": False, "error": str(error)}
        summary = answer["content"] or ""
        await rows(
            self._pool,
            "insert into email_profiles (connection_id, user_id, summary, mails) values (%s, %s, %s, %s)"
            " on conflict (connection_id) do update"
            " set user_id = excluded.user_id, summary = excluded.summary, mails = excluded.mails",
            connection["id"], connection["user_id"], summary, len(mails),
        )  # fmt: skip
        return {"success": True, "output": summary}

    async def _connection(self, connection_id: str, user_id: str) -> dict[str, Any] | None:
        """This user's connection; another user's is not found."""
        try:
            id = UUID(str(connection_id))
        except ValueError:
            return None
        statement = "select * from external_api_connections where id = %s and user_id = %s"
        return next(iter(await rows(self._pool, statement, id, user_id)), None)

    async def _mails(self, refresh_token: str) -> list[str]:
        """Who wrote, about what, and how it begins, of the newest mails."""
        settings = get_settings()
        form = {
            "grant_type": "refresh_token",
            "refresh_token": refresh_token,
            "client_id": settings.google_client_id,
            "client_secret": settings.google_client_secret,
        }
        token = (await call("Gmail", "POST", settings.google_token_url, data=form))["access_token"]
        messages = f"{settings.gmail_url}/gmail/v1/users/me/messages"
        listed = await call("Gmail", "GET", messages, token, params={"maxResults": MAILS, "labelIds": "INBOX"})
        found = []
        for one in listed.get("messages", []):
            what = {"format": "metadata", "metadataHeaders": ["From", "Subject"]}
            mail = await call("Gmail", "GET", f"{messages}/{one['id']}", token, params=what)
            headers = {header["name"]: header["value"] for header in mail["payload"].get("headers", [])}
            found.append(f"From: {headers.get('From')}\nSubject: {headers.get('Subject')}\n{mail.get('snippet', '')}")
        return found
