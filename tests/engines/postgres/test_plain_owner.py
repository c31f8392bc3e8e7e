"""A role that owns its database and nothing else: no superuser, as managed servers give it."""

import psycopg

from tests.support import provision
from treadle import Treadle


def test_an_owner_who_is_no_superuser_migrates_and_enqueues() -> None:
    server = provision.shared_postgres()
    url = provision.fresh_database(server)
    try:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("create role plain_owner login")
            connection.execute(f"alter database {connection.info.dbname} owner to plain_owner")
        app = Treadle(url.replace("treadle@", "plain_owner@"))

        @app.task
        def greet() -> None: ...

        app.migrate()
        assert app.get(greet.enqueue().id) is not None
        app.close()
    finally:
        provision.drop_database(url)
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute("drop role plain_owner")
