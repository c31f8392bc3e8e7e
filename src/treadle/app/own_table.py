"""The table of jobs that an application had, for the view that takes its place in PostgreSQL."""

from collections.abc import Mapping
from typing import NamedTuple


class OwnTable(NamedTuple):
    """What a profile's fields do not say of a table of jobs: its name, types, defaults and comments.

    `types` and `defaults` are SQL by column, where they are not the usual ones of the field. A column is never null if
    it has a default, or if it is the id, the task or the tenant. `words` are those of the states in the order of the
    table; if the states have a type of their own, it is an enumeration of them. `comments` are by column; "" is the
    table. `checks` are statements of PL/pgSQL about the row `new` that each insert runs. `script` is a package and a
    file of SQL in it, run after the view is there: what belonged to the table besides.
    """

    name: str
    types: Mapping[str, str] = {}
    defaults: Mapping[str, str | None] = {}
    words: tuple[str, ...] = ()
    comments: Mapping[str, str] = {}
    checks: str = ""
    script: tuple[str, str] | None = None
