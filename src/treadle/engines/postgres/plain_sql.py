"""Plain SQL as a way to enqueue, open or closed (the setting enqueue_allow).

Our own statement names every column of a new job; a plain insert and the function enqueue() leave `schedule` to its
default. To close plain SQL is to give that column a default that raises: our statement works on, on our connections and
in a caller's transaction alike. It keeps an honest caller out. A role that must not enqueue at all gets no INSERT.
"""

from treadle.engines.postgres.wire import Connection

CLOSED = "plain_sql_closed"
CLOSED_DEFAULT = f" default {CLOSED}()"

_CLOSE = f"""
create or replace function @.{CLOSED}() returns text
language plpgsql as $$
begin
    raise exception 'no job can be enqueued with plain SQL here: the setting enqueue_allow leaves out sql'
        using errcode = 'insufficient_privilege',
        hint = 'Enqueue it with treadle, or put sql into enqueue_allow and run `treadle migrate`.';
end
$$;
alter table @.jobs alter column schedule set default @.{CLOSED}();
"""

_OPEN = f"""
alter table @.jobs alter column schedule drop default;
drop function if exists @.{CLOSED}();
"""

_IS_CLOSED = """
select exists (select 1 from pg_attrdef d join pg_attribute a on a.attrelid = d.adrelid and a.attnum = d.adnum
    where d.adrelid = to_regclass(%s) and a.attname = 'schedule')
"""


def switch_sql(allowed: bool) -> str:
    """The statements that open plain SQL, or close it."""
    return _OPEN if allowed else _CLOSE


def is_allowed(connection: Connection, schema: str) -> bool:
    """Whether jobs can be enqueued with plain SQL."""
    [[closed]] = connection.execute(_IS_CLOSED, [f"{schema}.jobs"]).fetchall()
    return not closed
