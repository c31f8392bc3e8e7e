"""Jobs from plain SQL: an insert or a function call, by anybody, in any transaction, makes a job that a worker runs."""

import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import errors
from psycopg.types.json import Jsonb

from tests.support import provision
from tests.support.making import a_job, claim, race, settle
from tests.support.workbench import until, working
from treadle import Job, Retry, State, Treadle
from treadle.engines.postgres import schema
from treadle.model import new_id
from treadle.model.lifecycle import Succeeded

Sql = Callable[..., list[tuple[object, ...]]]
Session = Callable[[], psycopg.Connection]

QUEUES = ["default", "mail"]


class Shop:
    """An app whose tasks note what they were given."""

    def __init__(self, url: str) -> None:
        self.app = Treadle(url, poll=0.05)
        self.greeted: list[str] = []
        self.app.register("greet", self.greet)

    def greet(self, name: str = "nobody") -> str:
        self.greeted.append(name)
        return f"hello {name}"

    def work(self) -> list[str]:
        """Let a real worker run what is due; whom it greeted."""
        self.greeted.clear()
        self.app.run_worker(until_idle=True, queues=QUEUES)
        return self.greeted

    def get(self, id: object) -> Job:
        return self.app.get(str(id))

    def held(self) -> Job:
        """The next job, claimed by a worker that has not come back yet."""
        [job] = claim(self.app.engine, 1, queues=QUEUES)
        return job


@pytest.fixture
def shop(store_url: str) -> Iterator[Shop]:
    shop = Shop(store_url)
    yield shop
    shop.app.close()


@pytest.fixture
def session(store_url: str) -> Iterator[Session]:
    """Opens connections of somebody who knows only SQL; where a statement says @ he writes the schema's name."""
    opened: list[psycopg.Connection] = []

    class ByName(psycopg.Cursor):
        def execute(self, query: str, *arguments: object, **named: object) -> "ByName":
            return super().execute(query.replace("@", store_url.partition("?schema=")[2]), *arguments, **named)

    def open_session() -> psycopg.Connection:
        server = store_url.partition("?")[0]
        opened.append(psycopg.connect(server, cursor_factory=ByName))  # begins a transaction by itself
        return opened[-1]

    yield open_session
    for connection in opened:
        connection.close()


@pytest.fixture
def sql(session: Session) -> Sql:
    """`sql(statement, *values)`: run it and commit; its rows."""
    connection = session()
    connection.autocommit = True

    def run(statement: str, *values: object) -> list[tuple[object, ...]]:
        cursor = connection.execute(statement, values or None)
        return cursor.fetchall() if cursor.description else []

    return run


@pytest.fixture
def aside() -> Iterator[Callable[..., Future]]:
    with ThreadPoolExecutor(8) as pool:
        yield pool.submit


def enqueued(sql: Sql, arguments: str = "'greet'", *values: object) -> str:
    [(id,)] = sql(f"select @.enqueue({arguments})::text", *values)
    return str(id)


# ------------------------------------------------------------------------------------- a worker runs it


def test_a_plain_insert_is_a_job_that_a_worker_runs(shop: Shop, sql: Sql) -> None:
    [(id,)] = sql("""insert into @.jobs (task, payload) values ('greet', '{"name": "Ada"}') returning id""")
    assert shop.work() == ["Ada"]
    job = shop.get(id)
    assert (job.state, job.result, job.attempt) == (State.SUCCEEDED, "hello Ada", 1)


def test_a_plain_insert_may_name_whose_job_it_is(shop: Shop, sql: Sql) -> None:
    sql("""insert into @.jobs (tenant, task, payload) values ('ada', 'greet', '{"name": "Ada"}')""")
    assert shop.work() == ["Ada"]
    [job] = shop.app.find(tenant="ada").jobs
    assert job.state is State.SUCCEEDED


def test_a_task_alone_is_enough(shop: Shop, sql: Sql) -> None:
    sql("insert into @.jobs (task) values ('greet')")
    enqueued(sql)
    assert shop.work() == ["nobody", "nobody"]


def test_many_rows_in_one_insert_are_many_jobs(shop: Shop, sql: Sql) -> None:
    sql("insert into @.jobs (task, payload) select 'greet', json_build_object('name', n) from unnest(%s::text[]) n",
        [str(n) for n in range(200)])  # fmt: skip
    assert sorted(shop.work()) == sorted(str(n) for n in range(200))


def test_the_function_makes_a_job_that_a_worker_runs(shop: Shop, sql: Sql) -> None:
    id = enqueued(
        sql,
        """'greet', '{"name": "Ada"}', queue => 'mail', run_after => %s, priority => 7, key => 'ada'""",
        datetime.now(UTC) - timedelta(days=1),
    )
    job = shop.get(id)
    assert (job.queue, job.priority, job.key, job.key_scope) == ("mail", 7, "ada", "active")
    assert job.due_at == job.created_at  # the past is now
    assert shop.work() == ["Ada"]
    assert shop.get(id).result == "hello Ada"


def test_every_argument_of_the_function_reaches_the_job(shop: Shop, sql: Sql) -> None:
    id, later = new_id(), datetime.now(UTC) + timedelta(days=2)
    given = dict(  # noqa: C408 - reads like the call
        task="greet", payload=Jsonb({"name": "Ünal"}), queue="mail", run_after=later, priority=-3, key="k",
        key_scope="window", key_until=later + timedelta(days=1), tenant="acme", lane="left", max_attempts=9,
        retry_base=1.5, retry_cap=None, retry_jitter=0.25, timeout=60.0, expires_at=later + timedelta(days=2),
        task_version=4, id=id,
    )  # fmt: skip
    named = ", ".join(f"{name} => %s" for name in given)
    assert enqueued(sql, named, *given.values()) == id
    job = shop.get(id)
    moment = job.created_at
    assert job == Job(
        id, "greet", '{"name": "Ünal"}', moment, later, "acme", "mail", "left", 4, -3, Retry(9, 1.5, None, 0.25), 60.0,
        given["expires_at"], "k", "window", given["key_until"],
    )  # fmt: skip
    wanted = {name for (name,) in sql("select unnest(proargnames) from pg_proc where oid = '@.enqueue'::regproc")}
    assert wanted == given.keys()


def test_a_job_for_later_is_not_run_now(shop: Shop, sql: Sql) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    ids = [enqueued(sql, "'greet', run_after => %s", later)]
    [(inserted,)] = sql("insert into @.jobs (task, due_at) values ('greet', %s) returning id", later)
    assert shop.work() == []
    assert [shop.get(id).due_at for id in [*ids, inserted]] == [later, later]
    sql("update @.jobs set due_at = now()")
    assert len(shop.work()) == 2


def test_a_retry_waits_as_the_row_says(shop: Shop, sql: Sql) -> None:
    @shop.app.task
    def fail() -> None:
        raise RuntimeError("boom")

    id = enqueued(sql, "'fail', retry_base => 100, retry_cap => 77, retry_jitter => 0")
    shop.app.run_worker(until_idle=True)
    job = shop.get(id)
    assert (job.state, job.failures) == (State.PENDING, 1)
    assert timedelta(seconds=77) < job.due_at - job.created_at < timedelta(seconds=77 + 30)


def test_a_worker_that_is_idle_finds_it_by_polling(shop: Shop, sql: Sql) -> None:
    with working(shop.app, queues=QUEUES, poll=0.05):
        enqueued(sql)  # sends no notification
        until(lambda: shop.greeted, "the worker has found it")


# ----------------------------------------------------------------------------- in somebody's transaction

WAYS = {
    "an insert": """insert into @.jobs (task, payload) values ('greet', '{"name": "Ada"}')""",
    "the function": """select @.enqueue('greet', '{"name": "Ada"}')""",
    "the function with a key": """select @.enqueue('greet', '{"name": "Ada"}', key => 'ada')""",
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return WAYS[request.param]


@pytest.fixture
def orders(sql: Sql, store_url: str) -> str:
    """A table of the other service."""
    sql("create table @.orders (id serial primary key, name text not null)")
    return "@.orders"


@pytest.mark.covers("000-R14.b")
def test_the_job_is_there_when_the_other_service_commits(
    shop: Shop, session: Session, orders: str, sql: Sql, way: str
) -> None:
    theirs = session()
    theirs.execute(f"insert into {orders} (name) values ('Ada')")
    theirs.execute(way)
    assert shop.work() == []  # not before
    theirs.commit()
    assert shop.work() == ["Ada"]
    assert sql(f"select name from {orders}") == [("Ada",)]


@pytest.mark.covers("000-R14.b")
def test_there_is_no_job_when_the_other_service_rolls_back(
    shop: Shop, session: Session, orders: str, sql: Sql, way: str
) -> None:
    theirs = session()
    theirs.execute(f"insert into {orders} (name) values ('Ada')")
    theirs.execute(way)
    theirs.rollback()
    assert shop.work() == []
    assert (sql(f"select * from {orders}"), shop.app.find().jobs, sql("select * from @.keys")) == ([], [], [])


def test_a_savepoint_takes_the_job_with_it(shop: Shop, session: Session, way: str) -> None:
    theirs = session()
    theirs.execute("savepoint before")
    theirs.execute(way)
    theirs.execute("rollback to before")
    theirs.execute("select @.enqueue('greet')")
    theirs.commit()
    assert shop.work() == ["nobody"]


def test_a_job_in_a_long_transaction_is_due_since_its_statement(shop: Shop, session: Session, way: str) -> None:
    theirs = session()
    theirs.execute("select 1")
    [(begun, now)] = theirs.execute("select now(), clock_timestamp()").fetchall()
    assert begun < now
    theirs.execute(way)
    theirs.commit()
    [job] = shop.app.find().jobs
    assert job.created_at == job.due_at > now


def test_two_services_may_enqueue_at_once_without_waiting(shop: Shop, session: Session, way: str) -> None:
    one, two = session(), session()
    one.execute(way.replace("'ada'", "'one'"))
    two.execute(way.replace("'ada'", "'two'"))
    two.commit()
    one.commit()
    assert shop.work() == ["Ada", "Ada"]


TRIGGER = """
create function @.welcome() returns trigger language plpgsql as $$
begin
    perform @.enqueue('greet', jsonb_build_object('name', new.name), key => 'order:' || new.id);
    return new;
end
$$;
create trigger welcome after insert on @.orders for each row execute function @.welcome();
"""


def test_a_trigger_on_their_own_table_may_enqueue(shop: Shop, session: Session, orders: str, sql: Sql) -> None:
    sql(TRIGGER)
    theirs = session()
    theirs.execute(f"insert into {orders} (name) values ('Ada'), ('Grace')")
    theirs.commit()
    theirs.execute(f"insert into {orders} (name) values ('Eve')")
    theirs.rollback()
    assert sorted(shop.work()) == ["Ada", "Grace"]


def test_a_bad_job_in_a_trigger_refuses_their_row(session: Session, orders: str, sql: Sql) -> None:
    sql(TRIGGER.replace("'greet'", "''"))
    with pytest.raises(errors.CheckViolation, match="jobs_task_check"):
        session().execute(f"insert into {orders} (name) values ('Ada')")
    assert sql(f"select * from {orders}") == []


# ------------------------------------------------------------------------------------------------- keys


def test_while_the_first_is_pending_the_pending_scope_keeps_others_away(shop: Shop, sql: Sql) -> None:
    keyed = "'greet', key => 'k', key_scope => 'pending'"
    first = enqueued(sql, keyed)
    assert enqueued(sql, keyed) == first
    shop.held()
    second = enqueued(sql, keyed)
    assert second not in (first, None)
    assert enqueued(sql, keyed) == second


def test_until_the_first_has_ended_the_active_scope_keeps_others_away(shop: Shop, sql: Sql) -> None:
    keyed = "'greet', key => 'k'"
    first = enqueued(sql, keyed)
    held = shop.held()
    assert enqueued(sql, keyed) == first == held.id
    settle(shop.app.engine, held, Succeeded())
    assert enqueued(sql, keyed) != first
    assert shop.work() == ["nobody"]


def test_a_window_keeps_others_away_until_its_end_also_after_the_job_has_ended(shop: Shop, sql: Sql) -> None:
    keyed = "'greet', key => 'k', key_scope => 'window', key_until => now() + interval '1 hour'"
    first = enqueued(sql, keyed)
    assert shop.work() == ["nobody"]
    assert enqueued(sql, keyed) == first
    assert shop.work() == []
    sql("update @.keys set until = clock_timestamp()")  # an hour later
    second = enqueued(sql, keyed)
    assert second != first
    assert enqueued(sql, keyed) == second
    assert shop.work() == ["nobody"]


def test_a_window_that_is_over_already_keeps_nobody_away(shop: Shop, sql: Sql) -> None:
    keyed = "'greet', key => 'k', key_scope => 'window', key_until => now() - interval '1 second'"
    assert enqueued(sql, keyed) != enqueued(sql, keyed)
    assert len(shop.work()) == 2


def test_a_window_ends_with_the_last_trace_of_its_job(shop: Shop, sql: Sql) -> None:
    keyed = "'greet', key => 'k', key_scope => 'window', key_until => now() + interval '1 hour'"
    first = enqueued(sql, keyed)
    shop.work()
    sql("delete from @.finished")  # as when it was pruned
    assert enqueued(sql, keyed) != first


def test_for_ever_is_for_ever(shop: Shop, sql: Sql) -> None:
    keyed = "'greet', key => 'k', key_scope => 'ever'"
    first = enqueued(sql, keyed)
    shop.work()
    sql("delete from @.finished")
    assert enqueued(sql, keyed) == first
    assert shop.work() == []


def test_a_key_belongs_to_its_tenant_and_task(shop: Shop, sql: Sql) -> None:
    ids = {enqueued(sql, f"'{task}', tenant => '{tenant}', key => 'k'") for task in "ab" for tenant in "cd"}
    assert len(ids) == 4


def test_python_and_sql_see_each_others_keys(shop: Shop, sql: Sql) -> None:
    by_sql = enqueued(sql, "'greet', key => 'sql'")
    assert shop.app.enqueue("greet", key="sql").id == by_sql
    by_python = shop.app.enqueue("greet", key="python").id
    assert enqueued(sql, "'greet', key => 'python'") == by_python
    assert len(shop.work()) == 2


@pytest.mark.parametrize("scope", ["pending", "active", "window", "ever"])
def test_racing_sessions_get_the_same_job(shop: Shop, session: Session, sql: Sql, scope: str) -> None:
    sessions = [session() for _ in range(8)]
    for each in sessions:
        each.autocommit = True
    until_ = "now() + interval '1 hour'" if scope == "window" else "null"

    for number in range(20):
        call = f"select @.enqueue('greet', key => 'k{number}', key_scope => '{scope}', key_until => {until_})::text"

        def act(place: int, call: str = call) -> object:
            return sessions[place].execute(call).fetchone()

        assert len(set(race(8, act))) == 1
    assert sql("select count(*) from @.jobs") == [(20,)]
    assert len(shop.work()) == 20


def test_racing_sessions_and_apps_get_the_same_job(shop: Shop, session: Session, sql: Sql) -> None:
    sessions = [session() for _ in range(4)]
    for number in range(20):

        def act(place: int, key: str = f"k{number}") -> str:
            if place >= 4:
                return shop.app.enqueue("greet", key=key).id
            with sessions[place].transaction():
                return str(
                    enqueued(lambda *a: sessions[place].execute(a[0], a[1:]).fetchall(), "'greet', key => %s", key)
                )

        assert len(set(race(8, act))) == 1
    assert sql("select count(*) from @.jobs") == [(20,)]


@pytest.fixture
def waiting(sql: Sql) -> Callable[[psycopg.Connection], None]:
    """Returns once this session waits for another's transaction."""

    def wait(theirs: psycopg.Connection) -> None:
        look = "select 1 from pg_stat_activity where pid = %s and wait_event_type = 'Lock'"
        until(lambda: sql(look, theirs.info.backend_pid), "the session waits")

    return wait


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_who_comes_second_waits_for_the_transaction_of_the_first(
    shop: Shop, session: Session, aside: Callable[..., Future], waiting: Callable[..., None], ends: str
) -> None:
    one, two = session(), session()
    call = "select @.enqueue('greet', key => 'k')::text"
    first = one.execute(call).fetchone()
    answer = aside(lambda: two.execute(call).fetchone())
    waiting(two)
    getattr(one, ends)()
    second = answer.result(30)
    two.commit()
    assert (second == first) == (ends == "commit")
    assert shop.work() == ["nobody"]


def test_a_caller_with_an_old_snapshot_is_told_to_repeat(session: Session, sql: Sql) -> None:
    theirs = session()
    theirs.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    theirs.execute("select 1")
    first = enqueued(sql, "'greet', key => 'k'")
    with pytest.raises(errors.SerializationFailure):
        theirs.execute("select @.enqueue('greet', key => 'k')")
    theirs.rollback()
    assert theirs.execute("select @.enqueue('greet', key => 'k')::text").fetchone() == (first,)


# -------------------------------------------------------------------------------------------------- ids


@pytest.mark.parametrize("key", ["", ", key => 'k'"], ids=["without a key", "with a key"])
def test_an_id_given_twice_is_one_job_also_when_it_has_ended(shop: Shop, sql: Sql, key: str) -> None:
    id = new_id()
    for _ in range(2):
        assert enqueued(sql, f"'greet', id => %s{key}", id) == id
    assert shop.work() == ["nobody"]
    assert enqueued(sql, f"'greet', id => %s{key}", id) == id
    assert shop.work() == []
    assert shop.get(id).state is State.SUCCEEDED


def test_an_id_given_twice_keeps_what_the_first_one_asked_for(shop: Shop, sql: Sql) -> None:
    id = enqueued(sql, """'greet', '{"name": "Ada"}', key => 'k'""")
    assert enqueued(sql, """'greet', '{"name": "Eve"}', id => %s, key => 'other'""", id) == id
    assert shop.work() == ["Ada"]
    assert enqueued(sql, "'greet', key => 'other'") != id  # the second took no key either


def test_an_inserted_id_that_has_ended_is_refused(shop: Shop, sql: Sql) -> None:
    [(id,)] = sql("insert into @.jobs (task) values ('greet') returning id")
    with pytest.raises(errors.UniqueViolation):
        sql("insert into @.jobs (task, id) values ('greet', %s)", id)
    shop.work()
    with pytest.raises(errors.SerializationFailure, match=f"job {id} finished just now"):
        sql("insert into @.jobs (task, id) values ('greet', %s)", id)
    assert shop.work() == []


def test_racing_sessions_with_one_id_make_one_job(shop: Shop, session: Session) -> None:
    sessions = [session() for _ in range(8)]
    for _ in range(20):
        id = new_id()

        def act(place: int, id: str = id) -> object:
            with sessions[place].transaction():
                return sessions[place].execute("select @.enqueue('greet', id => %s)::text", [id]).fetchone()

        assert set(race(8, act)) == {(id,)}
    assert len(shop.work()) == 20


def test_new_id_makes_version_7_of_the_right_variant(sql: Sql) -> None:
    made = [UUID(str(id)) for (id,) in sql("select @.new_id() from generate_series(1, 2000)")]
    assert len(set(made)) == 2000
    assert {(id.version, id.variant) for id in made} == {(7, "specified in RFC 4122")}
    for bit in range(128):  # whatever is neither time nor version is random
        if bit not in range(80, 128) and bit not in range(76, 80) and bit not in (62, 63):
            assert {id.int >> bit & 1 for id in made} == {0, 1}, bit


def test_new_id_begins_with_the_time_in_milliseconds(sql: Sql) -> None:
    clock = "select trunc(extract(epoch from clock_timestamp()) * 1000)::bigint"
    [(before,)] = sql(clock)
    stamps = [UUID(str(id)).int >> 80 for (id,) in sql("select @.new_id() from generate_series(1, 1000)")]
    [(after,)] = sql(clock)
    assert stamps == sorted(stamps)
    assert before <= stamps[0] <= stamps[-1] <= after + 1


def later() -> None:
    """Return when two milliseconds have passed: ids made within one are in no order."""
    moment = time.time_ns()
    while time.time_ns() < moment + 2_000_000:
        pass


def test_ids_of_sql_and_of_python_sort_together_by_time(sql: Sql) -> None:
    made = []
    for number in range(40):
        made.append(str(sql("select @.new_id()")[0][0]) if number % 2 else new_id())
        later()
    assert made == sorted(made)


def test_the_newest_job_is_found_first_whoever_made_it(shop: Shop, sql: Sql) -> None:
    made = []
    for number in range(30):
        if number % 3 == 0:
            made.append(shop.app.enqueue("greet").id)
        elif number % 3 == 1:
            made.append(enqueued(sql))
        else:
            made.append(str(sql("insert into @.jobs (task) values ('greet') returning id")[0][0]))
        later()
    page = shop.app.find(limit=20)
    rest = shop.app.find(limit=20, cursor=page.cursor)
    assert [job.id for job in [*page.jobs, *rest.jobs]] == made[::-1]


# -------------------------------------------------------------------------------------------- defaults


def test_the_defaults_of_sql_are_those_of_python(shop: Shop, sql: Sql) -> None:
    [(inserted,)] = sql("insert into @.jobs (task, payload) values ('greet', '{}') returning id")
    by_python = shop.app.enqueue("greet")
    ours = a_job(by_python.created_at)
    for id in (str(inserted), enqueued(sql), by_python.id):
        job = shop.get(id)
        assert job.due_at == job.created_at
        assert job == ours.evolve(id=id, created_at=job.created_at, due_at=job.due_at)
        assert job.retry == Retry()


def test_null_for_an_argument_that_may_be_none_means_none(shop: Shop, sql: Sql) -> None:
    id = enqueued(
        sql, "'greet', run_after => null, key => null, timeout => null, expires_at => null, retry_cap => null"
    )
    job = shop.get(id)
    assert (job.key, job.key_scope, job.timeout, job.expires_at, job.retry.cap) == (None,) * 5
    assert job.due_at == job.created_at


# ------------------------------------------------------------------------------------------- bad values

REFUSED = {
    "an empty task": ("task", "''", "jobs_task_check"),
    "no task": ("task", "null", 'null value in column "task"'),
    "a task that is too long": ("task", "repeat('x', 201)", "jobs_task_check"),
    "an empty queue": ("queue", "''", "jobs_queue_check"),
    "an empty tenant": ("tenant", "''", "jobs_tenant_check"),
    "a lane that is too long": ("lane", "repeat('x', 201)", "jobs_lane_check"),
    "no attempts": ("max_attempts", "0", "jobs_max_attempts_check"),
    "too many attempts": ("max_attempts", "10001", "jobs_max_attempts_check"),
    "no time at all": ("timeout", "0", "jobs_timeout_check"),
    "a timeout that is no number": ("timeout", "'NaN'", "timeout"),
    "an endless timeout": ("timeout", "'infinity'", "timeout"),
    "a backoff below zero": ("retry_base", "-1", "retry_base"),
    "a backoff that is no number": ("retry_base", "'NaN'", "retry_base"),
    "an endless backoff": ("retry_base", "'infinity'", "retry_base"),
    "a cap below zero": ("retry_cap", "-1", "retry_cap"),
    "a cap that is no number": ("retry_cap", "'NaN'", "retry_cap"),
    "jitter that is no number": ("retry_jitter", "'NaN'", "retry_jitter"),
    "jitter below zero": ("retry_jitter", "-1", "retry_jitter"),
    "an end that never comes": ("expires_at", "'infinity'", "jobs_expires_at_check"),
    "an end after the year 9999": ("expires_at", "'20000-01-01'", "expires_at"),
    "an end before the year 1": ("expires_at", "'0044-03-15 BC'", "expires_at"),
    "a payload that is not JSON": ("payload", "'{'", "invalid input syntax for type json"),
    "no payload": ("payload", "null", 'null value in column "payload"'),
}


@pytest.mark.covers("002-M4.c", "002-M4.d")
@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        *REFUSED.values(),
        ("state", "'done'", "jobs_state_check"),
        ("state", "'succeeded'", "jobs_state_check"),
        ("state", "'running'", "jobs_lease_while_running"),
        ("lease_until", "now()", "jobs_lease_while_running"),
        ("due_at", "'infinity'", "jobs_due_at_check"),
        ("due_at", "'20000-01-01'", "due_at"),
        ("due_at", "'0044-03-15 BC'", "due_at"),
        ("created_at", "'infinity'", "created_at"),
        ("created_at", "'0044-03-15 BC'", "created_at"),
        ("key_scope", "'active'", "jobs_key_and_scope"),
        ("id", "'seven'", "invalid input syntax for type uuid"),
    ],
)
def test_an_insert_with_a_bad_value_is_refused_by_name(sql: Sql, column: str, value: str, said: str) -> None:
    row = {"task": "'greet'", "payload": "'{}'", column: value}
    with pytest.raises(psycopg.Error, match=said):
        sql(f"insert into @.jobs ({', '.join(row)}) values ({', '.join(row.values())})")
    assert sql("select * from @.jobs") == []


@pytest.mark.parametrize(
    ("argument", "value", "said"),
    [
        *REFUSED.values(),
        ("run_after", "'infinity'", "jobs_due_at_check"),
        ("run_after", "'20000-01-01'", "due_at"),
        ("key", "''", "jobs_key_check"),
        ("key", "repeat('x', 1001)", "jobs_key_check"),
        ("key", "'k', key_scope => 'daily'", "jobs_key_scope_check"),
        ("key", "'k', key_scope => 'window'", "key_until: the window scope, and only that, needs an end"),
        ("key", "'k', key_until => now()", "key_until: the window scope, and only that, needs an end"),
        ("key", "'k', key_scope => 'window', key_until => 'infinity'", "key_until"),
        ("key", "'k', key_scope => 'window', key_until => '20000-01-01'", "key_until"),
    ],
)
def test_a_call_with_a_bad_value_is_refused_by_name(sql: Sql, argument: str, value: str, said: str) -> None:
    row = {"task": "'greet'", argument: value}
    with pytest.raises(psycopg.Error, match=said):
        sql(f"select @.enqueue({', '.join(f'{name} => {given}' for name, given in row.items())})")
    assert sql("select * from @.jobs") == sql("select * from @.keys") == []


def test_a_key_without_the_function_is_refused_with_a_hint(sql: Sql) -> None:
    with pytest.raises(errors.CheckViolation, match="names a key that it does not hold") as refused:
        sql("insert into @.jobs (task, key, key_scope) values ('greet', 'k', 'active')")
    assert refused.value.diag.message_hint == "enqueue jobs with a key by the function enqueue(...)"


def test_an_insert_that_takes_its_key_by_hand_is_a_job_like_any_other(shop: Shop, session: Session) -> None:
    theirs, id = session(), new_id()
    theirs.execute(
        "insert into @.keys (tenant, task, key, job, scope) values ('default', 'greet', 'k', %s, 'ever')", [id]
    )
    theirs.execute("insert into @.jobs (id, task, key, key_scope) values (%s, 'greet', 'k', 'ever')", [id])
    theirs.commit()
    assert shop.app.enqueue("greet", key="k").id == id
    assert shop.work() == ["nobody"]


@pytest.mark.parametrize(
    ("payload", "reason"),
    [("[1, 2]", "invalid_payload"), ('{"nmae": "Ada"}', "invalid_payload"), ("7", "invalid_payload")],
)
def test_a_payload_that_does_not_fit_fails_its_own_job_only(shop: Shop, sql: Sql, payload: str, reason: str) -> None:
    [(bad,)] = sql("insert into @.jobs (task, payload) values ('greet', %s) returning id", payload)
    good = enqueued(sql)
    assert shop.work() == ["nobody"]
    assert (shop.get(bad).state, shop.get(bad).reason) == (State.FAILED, reason)
    assert shop.get(good).state is State.SUCCEEDED


def test_a_task_that_nobody_knows_waits_for_a_worker_who_does(shop: Shop, sql: Sql) -> None:
    id = enqueued(sql, "'unheard_of'")
    assert shop.work() == []
    assert shop.get(id).state is State.PENDING


# ------------------------------------------------------------------------------- the page on PostgreSQL

PAGE = Path(__file__).parents[3] / "docs" / "postgresql.md"
BLOCKS = re.findall(r"^```sql\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)


class Tenant:
    """A database with treadle in it, and roles called as on the page, but for a prefix of their own."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.prefix = f"shop_{uuid4().hex[:8]}_"

    def run(self, sql: str, role: str = "") -> list[tuple[object, ...]]:
        with psycopg.connect(self.of(role), autocommit=True) as connection:
            cursor = connection.execute(sql.replace("shop_", self.prefix))
            return cursor.fetchall() if cursor.description else []

    def of(self, role: str) -> str:
        """The URL for a role of the page."""
        return self.url.replace("//treadle@", f"//{role.replace('shop_', self.prefix)}@") if role else self.url


@pytest.fixture
def database() -> Iterator[Tenant]:
    """The page, run from its first statement to its last."""
    tenant = Tenant(provision.fresh_database(provision.shared_postgres()))
    app = Treadle(tenant.url)
    app.migrate()
    app.close()
    for block in BLOCKS:
        tenant.run(block)
    yield tenant
    provision.drop_database(tenant.url)
    with psycopg.connect(provision.shared_postgres(), autocommit=True) as connection:
        for [name] in connection.execute(
            "select rolname from pg_roles where starts_with(rolname, %s)", [tenant.prefix]
        ):
            connection.execute(f"drop role {name}")


def test_the_sql_of_the_page_does_what_it_says(database: Tenant) -> None:
    shop = Shop(database.url)
    assert shop.work() == ["Ada"]
    [grace] = shop.app.find(state="pending").jobs
    assert (grace.queue, grace.priority, grace.key) == ("mail", 5, "greet:grace")
    assert timedelta(minutes=4) < grace.due_at - grace.created_at <= timedelta(minutes=5)
    database.run("insert into orders (customer) values ('Alan')")
    assert shop.work() == ["Alan"]
    shop.app.close()


def test_the_rights_of_the_page_are_enough_for_a_worker(database: Tenant) -> None:
    shop = Shop(database.of("shop_worker"))

    @shop.app.task(retry=Retry(base=0, jitter=0))
    def fail() -> None:
        raise RuntimeError("boom")

    shop.app.enqueue("greet", {"name": "Eve"}, key="k")
    cancelled = shop.app.enqueue("greet", {"name": "Mallory"}, run_after="1h")
    shop.app.cancel(cancelled.id)
    shop.app.retry(cancelled.id)
    failing = fail.enqueue()
    assert sorted(shop.work()) == ["Ada", "Eve", "Mallory"]
    assert [event.kind for event in shop.app.events(failing.id)][-1] == "failed"
    assert shop.app.prune() == 0
    shop.app.close()


def test_the_rights_of_the_page_are_enough_to_enqueue(database: Tenant) -> None:
    web = Treadle(database.of("shop_web"))
    by_python = web.enqueue("greet", {"name": "Eve"}, key="k", checked=False)
    [(by_sql,)] = database.run("select treadle.enqueue('greet', key => 'k')::text", "shop_web")
    assert by_sql == by_python.id
    database.run("insert into treadle.jobs (task) values ('greet')", "shop_web")
    with pytest.raises(errors.InsufficientPrivilege):
        database.run("delete from treadle.jobs", "shop_web")
    web.close()
    shop = Shop(database.url)
    assert sorted(shop.work()) == ["Ada", "Eve", "nobody"]
    shop.app.close()


def test_the_doctor_speaks_to_a_worker_who_may_not_create_a_schema(database: Tenant) -> None:
    app = Treadle(database.of("shop_worker"))
    found = app.doctor()
    assert [finding.level for finding in found if "PostgreSQL" in finding.text] == ["ok"]
    assert {finding.level for finding in found if "schema" in finding.text} <= {"ok", "warning"}
    app.close()


def test_who_owns_the_schema_may_migrate_without_rights_on_the_database(database: Tenant) -> None:
    database.run("create role shop_owner login; create schema owned authorization shop_owner")
    app = Treadle(f"{database.of('shop_owner')}?schema=owned")
    assert app.migrate() == [step.name for step in schema.migrations()]
    app.close()
