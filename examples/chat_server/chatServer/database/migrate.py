"""Brings the database up to date: treadle's tables, then the files in supabase/migrations, by name."""

from contextlib import closing
from pathlib import Path

import psycopg

from chatServer.database.connection import SEARCH_PATH
from treadle import Treadle
from treadle.profiles import chat_server

SUPABASE = Path(__file__).parents[2] / "supabase"
LOCK = 26  # of the database: two servers may start at once


def migrate(url: str) -> None:
    """Every file may be run again. A database without Supabase gets the few things of it that are needed here."""
    with psycopg.connect(url, autocommit=True, options=SEARCH_PATH) as connection:
        connection.execute("select pg_advisory_lock(%s)", [LOCK])
        if connection.execute("select to_regclass('auth.users') is null").fetchone() == (True,):
            connection.execute((SUPABASE / "local.sql").read_bytes())
        with closing(Treadle(url, profile=chat_server.PROFILE)) as app:
            app.migrate()
            app.rls(worker_role="service_role", app_role="authenticated")
        for file in sorted((SUPABASE / "migrations").glob("*.sql")):
            connection.execute(file.read_bytes())
