"""Migrations, commands and the URL that is read from DATABASES."""

from contextlib import redirect_stdout
from io import StringIO

from django.apps import apps
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.db.migrations.loader import MigrationLoader
from django.db.utils import ConnectionHandler
from django.test import SimpleTestCase, TestCase, TransactionTestCase, tag
from shop import tasks

from treadle import ConfigError, State
from treadle.integrations.django import app
from treadle.integrations.django.database import DatabaseUrl, _postgres_url, _sqlite_url
from treadle.integrations.django.project import make_app
from treadle.integrations.django.test import TreadleTestMixin

POSTGRES = "django.db.backends.postgresql"


class MigrationTests(TreadleTestMixin, TestCase):
    def test_makemigrations_stays_quiet(self):
        call_command("makemigrations", "--check", "--dry-run", stdout=StringIO())

    def test_the_tables_are_there_and_our_ledger_agrees(self):
        self.assertEqual(app.check_schema(), [])
        self.assertEqual(app.migrate(), [])

    def test_the_newest_migration_goes_as_far_as_treadle_does(self):
        """A treadle migration without a Django migration: write one like the last, with the names of today."""
        from treadle.engines.migrations import read_migrations

        loader = MigrationLoader(None)
        newest = loader.get_migration(*loader.graph.leaf_nodes("treadle")[0])
        [upgrade] = [one for one in newest.operations if type(one).__name__ == "UpgradeTables"]
        self.assertEqual(upgrade.sqlite, read_migrations("treadle.engines.sqlite")[-1].name)
        pre = [one.name for one in read_migrations("treadle.engines.postgres") if one.name.endswith(".pre")]
        self.assertEqual(upgrade.postgresql, pre[-1])

    def test_other_databases_get_no_tables(self):
        from django.db import connections

        call_command("migrate", "treadle", database="other", verbosity=0)
        self.assertEqual([name for name in connections["other"].introspection.table_names() if "treadle" in name], [])

    def test_another_database_can_be_chosen_and_migrated_in_a_block(self):
        there = make_app({"database": "other"})
        with transaction.atomic(using="other"):
            self.assertIn("0001_jobs", there.migrate())
            job = there.register("hello", lambda: None).enqueue()
            self.assertEqual(there.get(job.id), job)
            transaction.set_rollback(True, using="other")
        self.assertEqual(self.jobs(), [])

    databases = {"default", "other"}


class BackwardsTests(TransactionTestCase):
    available_apps = None

    def test_sqlmigrate_prints_the_tables(self):
        said = StringIO()
        call_command("sqlmigrate", "treadle", "0001", stdout=said)
        self.assertIn("create table treadle", said.getvalue())

    def test_going_back_keeps_the_jobs(self):
        call_command("migrate", "treadle", "zero", verbosity=0)
        call_command("migrate", "treadle", verbosity=0)
        with connection.cursor() as cursor:
            cursor.execute("select count(*) from django_migrations where app = 'treadle'")
            ours = [label for label, _ in MigrationLoader(None).disk_migrations if label == "treadle"]
            self.assertEqual(cursor.fetchone()[0], len(ours))


@tag("own_connections")
class CommandTests(TransactionTestCase):
    def run_command(self, *arguments):
        said = StringIO()
        with redirect_stdout(said):
            call_command("treadle", *arguments)
        return said.getvalue()

    def test_the_commands_of_treadle_work_on_the_project(self):
        job = tasks.count_orders.enqueue()
        self.assertIn(job.id, self.run_command("jobs", "list", "--json"))
        self.run_command("worker", "--until-idle")
        self.assertEqual(app.get(job.id).state, State.SUCCEEDED)
        self.run_command("migrate", "--check")

    def test_a_command_that_fails_is_a_command_error(self):
        with self.assertRaisesRegex(CommandError, "ended with 2"):
            self.run_command("jobs", "show", "nonsense")


class DiscoveryTests(SimpleTestCase):
    def test_the_tasks_of_every_installed_app_are_known(self):
        self.assertEqual(apps.get_app_config("treadle").name, "treadle.integrations.django")
        self.assertTrue({"confirm", "fail", "shop.tasks.add"} <= set(app.tasks))


class UrlTests(SimpleTestCase):
    def url(self, **database):
        made = ConnectionHandler({"default": database})["default"]
        return _sqlite_url(made) if made.vendor == "sqlite" else _postgres_url(made, hide_password=False)

    def test_a_file_of_sqlite(self):
        sqlite = "django.db.backends.sqlite3"
        self.assertEqual(self.url(ENGINE=sqlite, NAME="/srv/a b#%.db"), "sqlite:////srv/a%20b%23%25.db")
        self.assertEqual(self.url(ENGINE=sqlite, NAME="shop.db"), "sqlite:///shop.db")

    def test_every_part_of_a_postgresql_database(self):
        url = self.url(
            ENGINE=POSTGRES, NAME="my db", USER="me", PASSWORD="p@ss/w:rd?", HOST="db.example", PORT=5433,
            OPTIONS={"sslmode": "require", "connect_timeout": 3, "server_side_binding": True},
        )  # fmt: skip
        self.assertEqual(
            url,
            "postgresql://me:p%40ss%2Fw%3Ard%3F@/my%20db?sslmode=require&connect_timeout=3&host=db.example&port=5433",
        )
        self.assertIsNotNone(make_app({"url": url}).engine)

    def test_a_socket_a_service_and_a_role(self):
        self.assertEqual(
            self.url(ENGINE=POSTGRES, NAME="shop", HOST="/var/run/postgresql"),
            "postgresql:///shop?host=%2Fvar%2Frun%2Fpostgresql",
        )
        service = self.url(ENGINE=POSTGRES, OPTIONS={"service": "shop", "passfile": "/etc/pass"})
        self.assertEqual(service, "postgresql:///?service=shop&passfile=%2Fetc%2Fpass")
        role = self.url(ENGINE=POSTGRES, NAME="shop", OPTIONS={"assume_role": "writer"})
        self.assertEqual(role, "postgresql:///shop?options=-c%20role%3Dwriter")

    def test_a_password_is_hidden_where_urls_are_shown(self):
        made = ConnectionHandler({"default": {"ENGINE": POSTGRES, "NAME": "shop", "USER": "me", "PASSWORD": "secret"}})
        self.assertEqual(_postgres_url(made["default"], hide_password=True), "postgresql://me:***@/shop")

    def test_what_cannot_be_meant_is_refused(self):
        with self.assertRaisesRegex(ConfigError, "'nowhere' is not in DATABASES; it has 'default', 'other'"):
            DatabaseUrl("nowhere").render_as_string()
        with self.assertRaisesRegex(ConfigError, "TREADLE: url and database"):
            make_app({"url": "sqlite:///x.db", "database": "default"})
        with self.assertRaisesRegex(ConfigError, "concurency.*did you mean concurrency"):
            make_app({"concurency": 3}).settings  # noqa: B018
        with self.assertRaisesRegex(ConfigError, "must be a dict"):
            make_app(["concurrency"])
