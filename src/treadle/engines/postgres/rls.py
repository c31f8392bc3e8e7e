"""Row-level security: walls between tenants in the server itself, for roles that may not be trusted with all rows.

Two roles: workers see every row; an application's role sees the rows of the tenant that its transaction names (the
setting treadle.tenant, set by a handle that is bound to a tenant), or, with an owner expression, those that belong to
it. FORCE holds the tables' owner to it too.
"""

import re
from collections.abc import Sequence

from treadle.engines.postgres.connection import Connection
from treadle.engines.postgres.schema import named
from treadle.engines.values import Finding, RowSecurity
from treadle.errors import ConfigError

TABLES = ("jobs", "finished", "keys", "events", "schedules", "pauses", "seals")
SETTING = "treadle.tenant"
WORKER, TENANT = "treadle_worker", "treadle_tenant"  # the names of the policies

_ROLE = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_OURS = f"nullif(current_setting('{SETTING}', true), '')"

# What the walls hide must not be run again under the same id: this looks behind them, as its owner may.
_GUARD = """
create or replace function @.walls_guard() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    if exists (select 1 from added n join @.finished f on f.id = n.id) then
        raise exception 'this id is taken' using errcode = '23505';
    end if;
    return null;
end
$$;
drop trigger if exists walls_guard on @.jobs;
create trigger walls_guard after insert on @.jobs
referencing new table as added for each statement execute function @.walls_guard();
"""

# Who hands a function over must be a superuser, or a member of the role that gets it, which may create in its schema.
_HAND_OVER = """
do $$ begin
    if has_schema_privilege('%worker', '@', 'create') then
        alter function @.walls_guard() owner to %worker;
    else
        grant create on schema @ to %worker;
        alter function @.walls_guard() owner to %worker;
        revoke create on schema @ from %worker;
    end if;
end $$;
"""


def rls_sql(schema: str, roles: RowSecurity) -> str:
    """The statements that raise the walls; they may be run again, with other roles too."""
    for field, role in (("worker_role", roles.worker), ("app_role", roles.app)):
        if not _ROLE.fullmatch(role):
            raise ConfigError(f"{field}: {role!r} must be a lower-case name of letters, digits and _")
    if roles.worker == roles.app:
        raise ConfigError("app_role: it must be another role than worker_role, or there are no walls")
    ours = f"tenant = {_OURS}"
    if roles.owner:  # which is asked of names only: a row with '*' is nobody's
        ours = f"case when tenant = '*' then false when {ours} then true else ({roles.owner}) end"
    lines = [_GUARD, _HAND_OVER.replace("%worker", roles.worker)]
    for table in TABLES:
        seen = f"case when tenant = '*' then true else {ours} end" if table == "pauses" else ours
        lines += [
            f"alter table @.{table} enable row level security;",
            f"alter table @.{table} force row level security;",
            f"drop policy if exists {WORKER} on @.{table};",
            f"create policy {WORKER} on @.{table} to {roles.worker} using (true) with check (true);",
            f"drop policy if exists {TENANT} on @.{table};",
            f"create policy {TENANT} on @.{table} to {roles.app} using ({seen}) with check ({ours});",
        ]
    every = "select, insert, update, delete"
    lines += [
        f"grant usage on schema @ to {roles.worker}, {roles.app};",
        f"grant {every} on all tables in schema @ to {roles.worker};",
        f"grant {every} on @.jobs, @.finished, @.keys, @.schedules, @.pauses to {roles.app};",
        f"grant select, insert on @.events to {roles.app};",
        f"grant select on @.seals, @.migrations to {roles.app};",
        f"grant execute on all functions in schema @ to {roles.worker}, {roles.app};",
    ]
    return named("\n".join(lines), schema) + "\n"


def stand(connection: Connection, schema: str) -> bool:
    """Whether there are walls."""
    sql = "select coalesce((select relrowsecurity from pg_class where oid = to_regclass(%s)), false)"
    return bool(connection.execute(sql, [f"{schema}.jobs"]).fetchall()[0][0])


_FACTS = """
select c.relname, c.relrowsecurity, c.relforcerowsecurity,
    array(select p.polname::text from pg_policy p where p.polrelid = c.oid order by 1)
from pg_class c where c.relnamespace = to_regnamespace(%(schema)s) and c.relname = any (%(tables)s)
"""

_ROLE_FACTS = "select rolsuper or rolbypassrls from pg_roles where rolname = current_user"


def examine(connection: Connection, schema: str) -> list[Finding]:
    """What an operator should know about the walls; nothing if there are none."""
    rows = connection.execute(_FACTS, {"schema": schema, "tables": list(TABLES)}).fetchall()
    if not any(row[1] for row in rows):
        return []
    holes = [f"{table}: {hole}" for table, *facts in rows if (hole := _hole(*facts))]
    if holes:
        return [Finding("error", f"row-level security has holes ({'; '.join(holes)}): raise the walls again")]
    [[through]] = connection.execute(_ROLE_FACTS).fetchall()
    if through:
        return [
            Finding(
                "warning", "row-level security is on, but this role is a superuser or has BYPASSRLS: no wall for it"
            )
        ]
    return [Finding("ok", "row-level security is on, and forced, for every table with tenants")]


def _hole(enabled: bool, forced: bool, policies: Sequence[str]) -> str:
    if not enabled:
        return "not enabled"
    if not forced:
        return "not forced"
    lacking = [name for name in (WORKER, TENANT) if name not in policies]
    return f"no policy {', '.join(lacking)}" if lacking else ""
