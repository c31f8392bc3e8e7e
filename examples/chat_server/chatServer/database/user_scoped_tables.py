"""The tables with rows of users, and the only way by which a request reads them."""

import json

from psycopg import sql
from psycopg.rows import DictRow, dict_row

from chatServer.database.connection import Pool

USER_SCOPED_TABLES = frozenset(
    {
        "agent_schedules",
        "chat_session_instances",
        "email_profiles",
        "external_api_connections",
        "jobs",
        "notifications",
        "pending_actions",
        "reminders",
    }
)


class NotUserScoped(Exception):
    """A table that is not in USER_SCOPED_TABLES."""


async def own_rows(pool: Pool, table: str, user_id: str, limit: int = 100) -> list[DictRow]:
    """The newest rows of this user. The condition scopes them, and below it so does the database, by its policies."""
    if table not in USER_SCOPED_TABLES:
        known = ", ".join(sorted(USER_SCOPED_TABLES))
        raise NotUserScoped(f"{table}: has no rows of users; the tables that have are {known}")
    statement = sql.SQL("select * from {} where user_id = %s order by created_at desc limit %s")
    async with pool.connection() as connection, connection.cursor(row_factory=dict_row) as cursor:
        claims = json.dumps({"sub": user_id, "role": "authenticated"})
        await cursor.execute("select set_config('request.jwt.claims', %s, true)", [claims])
        await cursor.execute("set local role authenticated")
        await cursor.execute(statement.format(sql.Identifier(table)), [user_id, limit])
        return await cursor.fetchall()
