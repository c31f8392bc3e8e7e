"""The database: settings of the connection, migrations, and who may read what."""
# ruff: noqa: N999 - the name of its package
