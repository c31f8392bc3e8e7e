"""A database with every migration, on the server that DATABASE_URL names; stand-ins for the services of others."""

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
import pytest
from chatServer.config import get_settings
from chatServer.database.connection import Pool, get_database_manager, rows
from chatServer.database.migrate import migrate
from chatServer.services.job_service import JobService

from treadle.testing import fakes
from treadle.testing.fakes import GmailServer, LlmServer, WebhookReceiver

Sql = Callable[..., Awaitable[list[dict[str, Any]]]]


@pytest.fixture(scope="session")
def database_url() -> Iterator[str]:
    server, name = os.environ["DATABASE_URL"], f"chat_test_{uuid4().hex[:12]}"
    url = urlsplit(server)._replace(path=f"/{name}").geturl()
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"create database {name}".encode())
        migrate(url)
        yield url
        connection.execute(f"drop database {name} with (force)".encode())


@pytest.fixture
async def pool(database_url: str) -> AsyncIterator[Pool]:
    """The pool of the process; users, and with them all that is theirs, go with the test."""
    yield await get_database_manager().open(database_url)
    await rows(get_database_manager().pool, "delete from auth.users")
    await get_database_manager().close()


@pytest.fixture
def sql(pool: Pool) -> Sql:
    """`await sql(statement, *values)`: what the database answers."""

    async def run(statement: str, *values: object) -> list[dict[str, Any]]:
        return await rows(pool, statement, *values)

    return run


@pytest.fixture
async def user(sql: Sql) -> str:
    [row] = await sql("insert into auth.users (id) values (gen_random_uuid()) returning id::text")
    return str(row["id"])


@pytest.fixture
async def service(pool: Pool) -> JobService:
    return JobService(pool)


@pytest.fixture
def gmail() -> Iterator[GmailServer]:
    with fakes.gmail() as server:
        yield server


@pytest.fixture
def llm() -> Iterator[LlmServer]:
    with fakes.llm() as server:
        yield server


@pytest.fixture
def receiver() -> Iterator[WebhookReceiver]:
    with fakes.webhook() as server:
        yield server


@pytest.fixture(autouse=True)
def _settings(
    gmail: GmailServer, llm: LlmServer, receiver: WebhookReceiver, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """The settings of a server whose services are these stand-ins."""
    given = {
        "DATABASE_URL": database_url, "SUPABASE_JWT_SECRET": "a secret for tests", "GMAIL_URL": gmail.url,
        "GOOGLE_TOKEN_URL": gmail.token_uri, "GOOGLE_CLIENT_ID": gmail.client_id,
        "GOOGLE_CLIENT_SECRET": gmail.client_secret, "LLM_URL": llm.url, "LLM_API_KEY": llm.api_key,
        "NOTIFY_URL": receiver.url,
    }  # fmt: skip
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    get_settings.cache_clear()
    yield
    get_settings.cache_clear()
