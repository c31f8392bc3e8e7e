"""Brings the database up to date: treadle's tables, then the files in supabase/migrations, by name."""

from contextlib import closing
from pathlib import Path

import psycopg

from chatServer.database.connection import SEARCH_PATH
from treadle import Treadle
from treadle.profiles import chat_server

SUPABASE = Path(__file__).parents[2] / "supabase"
# Users are not the app role of treadle: that one may write jobs, and names the tenant itself. Nobody is a member of it.
OWN_ROLE = """
do $$ begin
    create role treadle_app nologin;
exception when duplicate_object or unique_violation then null;  -- roles are the whole server's
end $$
"""
LOCK = 26  # of the database: two servers may start at once


def migrate(url: str) -> None:
    """Every file may be run again. A database without Supabase gets the few things of it that are needed here."""
    with psycopg.connect(url, autocommit=True, options=SEARCH_PATH) as connection:
        connection.execute("select pg_advisory_lock(%s)", [LOCK])
        if connection.execute("select to_regclass('auth.users') is null").fetchone() == (True,):
            connection.execute((SUPABASE / "local.sql").read_bytes())
        connection.execute(OWN_ROLE)
        with closing(Treadle(url, profile=chat_server.PROFILE)) as app:
            app.migrate()
            app.rls(worker_role="service_role", app_role="treadle_app")
        for file in sorted((SUPABASE / "migrations").glob("*.sql")):
            connection.execute(file.read_bytes())
