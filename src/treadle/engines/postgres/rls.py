"""Row-level security: the server itself keeps tenants apart, for roles that must not see all rows.

There are two roles. Workers see every row. An application's role sees the rows of the tenant that its transaction names
(the setting treadle.tenant, which app.tenant(name) sets), or, with an owner expression, the rows that belong to it.
FORCE makes the policies hold for the tables' owner too.
"""

import re
from collections.abc import Sequence

from treadle.engines.postgres.schema import RLS_GUARDS, named
from treadle.engines.postgres.wire import Connection
from treadle.engines.values import Finding, RowSecurity
from treadle.errors import ConfigError

TABLES = ("jobs", "finished", "keys", "events", "schedules", "pauses", "seals", "memos")
SETTING = "treadle.tenant"
READ_TENANT = f"select coalesce(current_setting('{SETTING}', true), '') where $1::text is not null"
SET_TENANT = f"select set_config('{SETTING}', $1::text, true)"
WORKER_POLICY, TENANT_POLICY = "treadle_worker", "treadle_tenant"

_ROLE = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_CURRENT_TENANT = f"nullif(current_setting('{SETTING}', true), '')"
_GUARD_NAME, _OLD_GUARD_NAME = RLS_GUARDS

# A job that the policies hide must not run again under the same id: the guard sees all rows, as the worker's role.
_GUARD = f"""
drop trigger if exists {_OLD_GUARD_NAME} on @.jobs;
drop function if exists @.{_OLD_GUARD_NAME}();
create or replace function @.{_GUARD_NAME}() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    if exists (select 1 from added n join @.finished f on f.id = n.id) then
        raise exception 'this id is taken' using errcode = '23505';
    end if;
    -- guard_jobs can be told to look away (treadle.guarded), and a value that nobody can read would stop all workers.
    perform @.refuse_job(b.broken) from added n cross join lateral (
        select @.broken_check(n.task, n.created_at, n.due_at, n.tenant, n.queue, n.lane, n.max_attempts, n.retry_base,
            n.retry_cap, n.retry_jitter, n.timeout, n.expires_at, n.key, n.key_scope, n.key_until, n.on_end) as broken
    ) b where b.broken is not null limit 1;
    return null;
end
$$;
drop trigger if exists {_GUARD_NAME} on @.jobs;
drop trigger if exists {_GUARD_NAME}_checks on @.jobs;
create trigger {_GUARD_NAME} after insert on @.jobs
referencing new table as added for each statement execute function @.{_GUARD_NAME}();
"""

# To give a function to another role one must be a superuser, or a member of that role, and the role must have the right
# to create in the schema.
_HAND_OVER = f"""
do $$ begin
    if has_schema_privilege('%worker', '@', 'create') then
        alter function @.{_GUARD_NAME}() owner to %worker;
    else
        grant create on schema @ to %worker;
        alter function @.{_GUARD_NAME}() owner to %worker;
        revoke create on schema @ from %worker;
    end if;
end $$;
"""


def rls_sql(schema: str, roles: RowSecurity) -> str:
    """The statements that set up row-level security; they may be run again, with other roles too."""
    for field, role in (("worker_role", roles.worker), ("app_role", roles.app)):
        if not _ROLE.fullmatch(role):
            raise ConfigError(f"{field}: {role!r} must be a lower-case name of letters, digits and _")
    if roles.worker == roles.app:
        raise ConfigError("app_role: it must be another role than worker_role, or it sees all rows")
    ours = f"tenant = {_CURRENT_TENANT}"
    if roles.owner:  # the owner expression is asked of names only: a row with '*' belongs to no tenant
        ours = f"case when tenant = '*' then false when {ours} then true else ({roles.owner}) end"
    statements = [_GUARD, _HAND_OVER.replace("%worker", roles.worker)]
    for table in TABLES:
        statements += [
            f"alter table @.{table} enable row level security;",
            f"alter table @.{table} force row level security;",
            f"drop policy if exists {WORKER_POLICY} on @.{table};",
            f"create policy {WORKER_POLICY} on @.{table} to {roles.worker} using (true) with check (true);",
            *(_pause_policies(roles.app, ours) if table == "pauses" else _tenant_policy(table, roles.app, ours)),
        ]
    every = "select, insert, update, delete"
    statements += [
        f"grant usage on schema @ to {roles.worker}, {roles.app};",
        f"grant {every} on all tables in schema @ to {roles.worker};",
        f"grant {every} on @.jobs, @.finished, @.keys, @.schedules, @.pauses to {roles.app};",
        f"grant select, insert on @.events to {roles.app};",
        f"grant select, delete on @.memos to {roles.app};",
        f"grant select on @.seals, @.migrations to {roles.app};",
        f"grant execute on all functions in schema @ to {roles.worker}, {roles.app};",
    ]
    return named("\n".join(statements), schema) + "\n"


def _tenant_policy(table: str, role: str, ours: str) -> list[str]:
    return [
        f"drop policy if exists {TENANT_POLICY} on @.{table};",
        f"create policy {TENANT_POLICY} on @.{table} to {role} using ({ours}) with check ({ours});",
    ]


def _pause_policies(role: str, ours: str) -> list[str]:
    """A tenant sees the pauses that hold for it, and writes those that are its own or over."""
    own = f"({ours}) and owner = 'tenant'"
    free = f"({ours}) and (owner = 'tenant' or until <= statement_timestamp())"
    policies = {
        TENANT_POLICY: f"for select to {role} using (case when tenant = '*' then true else {ours} end)",
        f"{TENANT_POLICY}_insert": f"for insert to {role} with check ({own})",
        f"{TENANT_POLICY}_update": f"for update to {role} using ({free}) with check ({own})",
        f"{TENANT_POLICY}_delete": f"for delete to {role} using ({free})",
    }
    drops = [f"drop policy if exists {name} on @.pauses;" for name in policies]
    return [*drops, *(f"create policy {name} on @.pauses {rule};" for name, rule in policies.items())]


def is_on(connection: Connection, schema: str) -> bool:
    """Whether row-level security is on."""
    sql = "select coalesce((select relrowsecurity from pg_class where oid = to_regclass(%s)), false)"
    return bool(connection.execute(sql, [f"{schema}.jobs"]).fetchall()[0][0])


_FACTS = """
select c.relname, c.relrowsecurity, c.relforcerowsecurity,
    array(select p.polname || ' ' || p.polcmd::text from pg_policy p where p.polrelid = c.oid order by 1)
from pg_class c where c.relnamespace = to_regnamespace(%(schema)s) and c.relname = any (%(tables)s)
"""

_ROLE_FACTS = "select rolsuper or rolbypassrls from pg_roles where rolname = current_user"


def examine(connection: Connection, schema: str) -> list[Finding]:
    """What an operator should know about row-level security; nothing if it is off."""
    rows = connection.execute(_FACTS, {"schema": schema, "tables": list(TABLES)}).fetchall()
    if not any(row[1] for row in rows):
        return []
    holes = [f"{table}: {hole}" for table, *facts in rows if (hole := _hole(table, *facts))]
    if holes:
        return [Finding("error", f"row-level security has holes ({'; '.join(holes)}): run `treadle rls` again")]
    [[bypasses]] = connection.execute(_ROLE_FACTS).fetchall()
    if bypasses:
        problem = "row-level security is on, but this role is a superuser or has BYPASSRLS: it sees all rows"
        return [Finding("warning", problem)]
    return [Finding("ok", "row-level security is on, and forced, for every table with tenants")]


_ALL = {f"{WORKER_POLICY} *": WORKER_POLICY, f"{TENANT_POLICY} *": TENANT_POLICY}
_OF_PAUSES = {
    f"{WORKER_POLICY} *": WORKER_POLICY,
    f"{TENANT_POLICY} r": f"{TENANT_POLICY} for select",
    f"{TENANT_POLICY}_insert a": f"{TENANT_POLICY}_insert",
    f"{TENANT_POLICY}_update w": f"{TENANT_POLICY}_update",
    f"{TENANT_POLICY}_delete d": f"{TENANT_POLICY}_delete",
}
"""The policies of a table by name and command, as PostgreSQL lists them, and what an operator calls them."""


def _hole(table: str, enabled: bool, forced: bool, policies: Sequence[str]) -> str:
    if not enabled:
        return "not enabled"
    if not forced:
        return "not forced"
    wanted = _OF_PAUSES if table == "pauses" else _ALL
    lacking = [name for policy, name in wanted.items() if policy not in policies]
    return f"no policy {', '.join(lacking)}" if lacking else ""
