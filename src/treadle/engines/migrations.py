"""Numbered migrations: the SQL files beside an engine, and whether those that a store has seen are ours."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import NamedTuple

from treadle.errors import SchemaError


class Migration(NamedTuple):
    """One step of a schema. Its name is the name of its file, without `.sql`."""

    name: str  # 0001_jobs; a half of one is 0001_jobs.pre or 0001_jobs.post
    sql: str

    @property
    def number(self) -> int:
        return int(self.name[:4])

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()[:16]


def read_migrations(package: str) -> tuple[Migration, ...]:
    """The files in a package's folder `migrations`, by number; of one number, `pre` comes before `post`."""
    folder = resources.files(package) / "migrations"
    names = [item.name for item in folder.iterdir() if item.name.endswith(".sql")]
    names.sort(key=lambda name: (name[:4], ".post." in name))
    return tuple(Migration(name.removesuffix(".sql"), (folder / name).read_text("utf-8")) for name in names)


def refuse_foreign(
    applied: Mapping[str, str], known: Sequence[Migration], *, newer_fits: Callable[[str], bool] = lambda _: False
) -> None:
    """SchemaError if one of the applied migrations (name -> checksum) is not ours.

    `newer_fits` says whether this code can live with a migration that it does not know.
    """
    checksums = {step.name: step.checksum for step in known}
    for name, checksum in applied.items():
        if name not in checksums and not newer_fits(name):
            raise SchemaError(f"migration {name} comes from a newer treadle: upgrade treadle to use this store")
        if checksums.get(name, checksum) != checksum:
            raise SchemaError(f"migration {name} differs from the one applied here: install the treadle that wrote it")
