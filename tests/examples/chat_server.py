"""examples/chat_server as a process and as modules: its database, its stand-ins, its users."""

import base64
import hashlib
import hmac
import json
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import psycopg
from psycopg.rows import dict_row

from tests.examples.conftest import EXAMPLES, Example
from treadle.testing import fakes

FOLDER = EXAMPLES / "chat_server"
START = "python -m chatServer.main"
OWN_TESTS = "pytest"
SECRET = "the secret of this project's tokens"
CLAIMS = {"aud": "authenticated", "role": "authenticated"}
SEARCH_PATH = "-c search_path=public"
AGE = (
    "update treadle.jobs set claimed_at = claimed_at - interval '31 minutes',"
    " lease_until = lease_until - interval '31 minutes' where state = 'running' and id = %s"
)
"""What 31 minutes do to a job that is claimed."""
OLD_TABLES = """
create table email_processing_jobs (
    id uuid primary key default gen_random_uuid(), user_id uuid not null, connection_id uuid not null,
    status text not null default 'pending', result_summary jsonb, error_message text,
    created_at timestamptz not null default now(), started_at timestamptz, completed_at timestamptz,
    updated_at timestamptz not null default now());
create table email_digest_batches (id uuid primary key)
"""

Row = dict[str, Any]


def sql(database: str, statement: str, *values: object) -> list[Row]:
    with psycopg.connect(database, autocommit=True, row_factory=dict_row, options=SEARCH_PATH) as connection:
        cursor = connection.execute(statement, values or None)
        return cursor.fetchall() if cursor.description else []


def as_role(database: str, role: str, user: str, statement: str, *values: object) -> list[Row]:
    """What the database answers to a user, or to the service in a user's name."""
    with psycopg.connect(database, row_factory=dict_row, options=SEARCH_PATH) as connection:
        connection.execute("select set_config('request.jwt.claims', %s, true)", [f'{{"sub": "{user}"}}'])
        connection.execute(f"set local role {role}")
        cursor = connection.execute(statement, values or None)
        return cursor.fetchall() if cursor.description else []


def new_user(database: str) -> str:
    [row] = sql(database, "insert into auth.users (id) values (gen_random_uuid()) returning id::text")
    return str(row["id"])


def token(user: str, *, secret: str = SECRET, seconds: float = 3600, algorithm: str = "HS256", **claims: object) -> str:
    """What Supabase gives a user who has signed in."""
    parts = [{"alg": algorithm, "typ": "JWT"}, {**CLAIMS, "sub": user, "exp": time.time() + seconds, **claims}]
    text = ".".join(_encoded(json.dumps(part).encode()) for part in parts)
    return f"{text}.{_encoded(hmac.new(secret.encode(), text.encode(), hashlib.sha256).digest())}"


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class Chat:
    """The chat server on one database, with stand-ins for whom it speaks to; started and started again."""

    def __init__(self, database: str, folder: Path) -> None:
        self.database = database
        self._open = ExitStack()
        self.gmail = self._open.enter_context(fakes.gmail())
        self.llm = self._open.enter_context(fakes.llm())
        self.receiver = self._open.enter_context(fakes.webhook())
        self.example = Example("chat_server", folder)
        self._open.callback(self.example.clear_away)
        quick = ("RUNNER_POLL", "EXPIRY", "SCHEDULES", "REMINDERS", "SESSIONS", "EXECUTORS")
        self.example.environment |= {
            **settings_for(database, self.gmail, self.llm, self.receiver),
            **{f"{name}_SECONDS": "0.1" for name in quick},
        }

    def start(self) -> None:
        self.process = self.example.start(START, "--port", "0")
        self.port = int(self.process.says(r"chat: serving http://127.0.0.1:(\d+)"))

    def close(self) -> None:
        self._open.close()

    def ask(self, method: str, path: str, bearer: str = "", body: object = None) -> tuple[int, Any]:
        text = body if isinstance(body, str | None) else json.dumps(body)
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            headers = {"Authorization": f"Bearer {bearer}", "Content-Type": "application/json"}
            connection.request(method, path, text, headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

    def sql(self, statement: str, *values: object) -> list[Row]:
        return sql(self.database, statement, *values)

    def jobs(self, user: str) -> list[Row]:
        return self.sql("select * from jobs where user_id = %s order by created_at", user)


def settings_for(database: str, gmail: Any, llm: Any, receiver: Any) -> dict[str, str]:
    return {
        "DATABASE_URL": database, "SUPABASE_JWT_SECRET": SECRET, "GMAIL_URL": gmail.url,
        "GOOGLE_TOKEN_URL": gmail.token_uri, "GOOGLE_CLIENT_ID": gmail.client_id,
        "GOOGLE_CLIENT_SECRET": gmail.client_secret, "LLM_URL": llm.url, "LLM_API_KEY": llm.api_key,
        "NOTIFY_URL": receiver.url,
    }  # fmt: skip


@contextmanager
def importable() -> Iterator[None]:
    """The package chatServer can be imported, and is gone again afterwards."""
    sys.path.insert(0, str(FOLDER))
    try:
        yield
    finally:
        sys.path.remove(str(FOLDER))
        for name in [name for name in sys.modules if name.partition(".")[0] == "chatServer"]:
            del sys.modules[name]


async def in_loop(database: str, do: Callable[[Any], Awaitable[None]], **stand_ins: Any) -> None:
    """Run an async function of the parts of the server, on a pool of its own."""
    from chatServer.config import ChatSettings
    from chatServer.database.connection import get_database_manager
    from chatServer.services.background_tasks import BackgroundTaskService
    from chatServer.services.job_runner_service import JobRunnerService
    from chatServer.services.job_service import JobService

    pool = await get_database_manager().open(database)
    try:
        service, settings = JobService(pool), ChatSettings()
        runner = JobRunnerService(service, poll=0.05)
        background = BackgroundTaskService(pool, service, runner, settings)
        await do(SimpleNamespace(pool=pool, service=service, runner=runner, background=background, **stand_ins))
    finally:
        await get_database_manager().close()


def an_id() -> str:
    return str(uuid4())
