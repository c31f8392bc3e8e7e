"""The operation of our Django migrations: it runs treadle's own, on the connection that Django migrates."""

from typing import Any

from django.db import router
from django.db.migrations.operations.base import Operation

from treadle.engines.contract import StagedSchema


class UpgradeTables(Operation):
    """Bring the tables up to date with the treadle that is installed, and its ledger with them.

    A migration file says up to which of treadle's own migrations it goes. Whichever of these are missing are applied,
    later ones too: so a new database needs one file, and `treadle migrate --check` agrees with Django at any time.
    """

    reduces_to_sql = True
    reversible = True

    def __init__(self, *, sqlite: str, postgresql: str) -> None:
        self.sqlite = sqlite
        self.postgresql = postgresql

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Django's models are not concerned."""

    def database_forwards(self, app_label: str, schema_editor: Any, _from_state: Any, _to_state: Any) -> None:
        """Apply what is missing, if this is the database that has the jobs."""
        from treadle.integrations.django.project import app  # noqa: PLC0415 - Django loads migrations before it needs them

        connection = schema_editor.connection
        if connection.alias != app.database or not router.allow_migrate(connection.alias, app_label):
            return
        engine = app._store.engine_on(connection)
        if schema_editor.collect_sql:
            schema_editor.collected_sql.append(engine.schema_sql())
        elif isinstance(engine, StagedSchema):
            engine.migrate_half("pre")  # what old code can live with: it may still run
        else:
            engine.migrate()

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Nothing: older code can live with these tables, and nobody's jobs are thrown away."""

    def describe(self) -> str:
        return f"Bring treadle's tables up to {self.postgresql} (on SQLite {self.sqlite})"

    @property
    def migration_name_fragment(self) -> str:
        return "tables"
