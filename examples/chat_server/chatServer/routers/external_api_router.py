"""Connections to the mailboxes of users."""

import json
from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from psycopg.errors import ForeignKeyViolation
from pydantic import AfterValidator, BaseModel, Field

from chatServer.database.connection import get_database_manager
from chatServer.database.user_scoped_tables import own_rows
from chatServer.routers.auth import User

router = APIRouter(prefix="/api")


def _storable(text: str) -> str:
    if "\0" in text:
        raise ValueError("holds a NUL, which the database does not store: remove it")
    return text


Text = Annotated[str, AfterValidator(_storable)]


class NewConnection(BaseModel):
    provider: Literal["gmail"]
    address: Text = Field(min_length=3, max_length=320)
    refresh_token: Text = Field(min_length=1, max_length=2048, repr=False)


async def refuse(_: Request, error: RequestValidationError) -> JSONResponse:
    """What is wrong with which field, but not what was given: it may be a token, or be no JSON, as NaN is."""
    problems = [{name: problem[name] for name in ("type", "loc", "msg")} for problem in error.errors()]
    return JSONResponse({"detail": problems}, 422)


@router.post("/external-connections", status_code=201)
async def connect(given: NewConnection, user_id: User) -> dict[str, str]:
    """Keep a connection and enqueue the job that reads the mailbox: both in one transaction, or neither."""
    try:
        async with get_database_manager().pool.connection() as connection, connection.cursor() as cursor:
            await cursor.execute(
                "insert into external_api_connections (user_id, provider, address, refresh_token)"
                " values (%s, %s, %s, %s) on conflict (user_id, provider, address)"
                " do update set refresh_token = excluded.refresh_token returning id",
                (user_id, given.provider, given.address, given.refresh_token),
            )
            [connection_id] = await cursor.fetchone() or [None]
            await cursor.execute(
                "insert into jobs (user_id, job_type, input) values (%s, 'email_processing', %s)",
                (user_id, json.dumps({"connection_id": str(connection_id)})),
            )
    except ForeignKeyViolation:
        raise HTTPException(403, "authorization: there is no such user in auth.users") from None
    return {"id": str(connection_id)}


@router.get("/jobs")
async def jobs(user_id: User) -> list[dict[str, Any]]:
    """The user's own jobs, the newest first."""
    return await own_rows(get_database_manager().pool, "jobs", user_id)
