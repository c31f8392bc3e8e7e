"""Promise 13 below the application: row-level security, with two roles, through PgBouncer in transaction mode."""

import threading
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from tests.support import provision
from tests.support.making import claim, settle
from tests.support.provision import Cluster, PgBouncer
from tests.support.workbench import ended, working
from treadle import InvalidJob, JobNotFound, Treadle
from treadle.engines.postgres import rls, schema
from treadle.engines.postgres.rls import TABLES
from treadle.engines.values import Lease, Renewal
from treadle.errors import EngineError
from treadle.model import Job, new_id
from treadle.model.lifecycle import Succeeded
from treadle.model.memo import Memo, MemoState

WORKER, APP = "rls_worker", "rls_app"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        with psycopg.connect(cluster.url, autocommit=True) as connection:
            for role in (WORKER, APP):
                connection.execute(f"create role {role} login")
        yield cluster


@pytest.fixture(scope="module")
def pooler(cluster: Cluster) -> Iterator[PgBouncer]:
    with PgBouncer(cluster, roles=("treadle", WORKER, APP), default_pool_size="1") as pooler:
        yield pooler


@pytest.fixture
def store_url(cluster: Cluster) -> Iterator[str]:
    url = provision.fresh_database(cluster.url)
    yield url
    provision.drop_database(url)


def as_role(url: str, role: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{role}@{parts.hostname}:{parts.port}"))


@pytest.fixture
def owner(store_url: str) -> Iterator[Treadle]:
    app = Treadle(store_url)
    app.migrate()
    app.rls(worker_role=WORKER, app_role=APP)
    yield app
    app.close()


@pytest.fixture(params=["direct", "pooled"])
def shop(request: pytest.FixtureRequest, owner: Treadle, store_url: str, cluster: Cluster) -> Iterator[Treadle]:
    """The application, as a role that sees one tenant at a time; straight to the server or by way of one connection."""
    url = as_role(store_url, APP)
    if request.param == "pooled":
        pooler = request.getfixturevalue("pooler")
        url = as_role(store_url.replace(f":{cluster.port}/", f":{pooler.port}/"), APP)
    app = _with_tasks(Treadle(url))
    yield app
    app.close()


@pytest.fixture
def crew(owner: Treadle, store_url: str) -> Iterator[Treadle]:
    """The workers' app, as a role that sees every row."""
    app = _with_tasks(Treadle(as_role(store_url, WORKER), poll=0.05))
    yield app
    app.close()


def _with_tasks(app: Treadle) -> Treadle:
    @app.task
    def greet(name: str) -> str:
        return f"hello {name}"

    return app


def seen_by(url: str, tenant: str | None) -> dict[str, int]:
    """How many rows of each table a role sees with plain SQL."""
    with psycopg.connect(url) as connection:
        if tenant is not None:
            connection.execute("select set_config('treadle.tenant', %s, true)", [tenant])
        return {t: connection.execute(f"select count(*) from treadle.{t}").fetchone()[0] for t in TABLES}


@pytest.mark.covers("000-AC-01.e", "000-R21.c")
def test_two_tenants_work_side_by_side_and_see_nothing_of_each_other(shop: Treadle, crew: Treadle) -> None:
    acme, globex = shop.tenant("acme"), shop.tenant("globex")
    ours = acme.enqueue("greet", {"name": "Ada"}, key="k")
    theirs = globex.enqueue("greet", {"name": "Bob"}, key="k")
    assert (ours.tenant, theirs.tenant) == ("acme", "globex")
    with working(crew):
        ended(crew, ours, theirs)
    assert [job.id for job in acme.find().jobs] == [ours.id]
    assert [job.id for job in globex.find().jobs] == [theirs.id]
    assert acme.get(ours.id).result == "hello Ada"
    with pytest.raises(JobNotFound):
        acme.get(theirs.id)
    with pytest.raises(JobNotFound):
        globex.cancel(ours.id)


def test_a_bound_handle_lives_its_whole_life_under_row_level_security(shop: Treadle, crew: Treadle) -> None:
    acme = shop.tenant("acme")
    job = acme.enqueue("greet", {"name": "Ada"}, run_after="1h")
    assert acme.why(job.id)[0].kind == "due"
    assert acme.cancel(job.id, actor="ann", reason="typo").state == "cancelled"
    assert [line.actor for line in acme.events(job.id)] == ["ann"]
    assert acme.retry(job.id, actor="ann").state == "pending"
    acme.schedules.create("nightly", "greet", {"name": "Ada"}, cron="0 2 * * *")
    assert acme.schedules.disable("nightly").enabled is False
    acme.pause(queue="default", reason="a look around")
    assert [pause.queue for pause in acme.pauses()] == ["default"]
    assert acme.why(job.id)[0].kind == "paused"
    acme.resume(queue="default")
    assert shop.tenant("globex").schedules.list() == []
    assert shop.tenant("globex").pauses() == []
    assert shop.tenant("globex").audit() == []
    with working(crew):
        assert ended(crew, job)[0].state == "succeeded"


def test_without_a_tenant_the_application_sees_and_stores_nothing(shop: Treadle, crew: Treadle) -> None:
    shop.tenant("acme").enqueue("greet", {"name": "Ada"})
    assert shop.find().jobs == []
    with pytest.raises(EngineError, match=r"one tenant at a time: use app\.tenant"):
        shop.enqueue("greet", {"name": "Eve"})
    assert len(crew.find().jobs) == 1


def test_the_id_of_another_tenants_job_is_an_error_whether_it_waits_or_has_ended(shop: Treadle, crew: Treadle) -> None:
    waiting = shop.tenant("acme").enqueue("greet", {"name": "Ada"}, run_after="1h")
    done = shop.tenant("acme").enqueue("greet", {"name": "Ada"})
    with working(crew):
        ended(crew, done)
    for taken in (waiting.id, done.id):
        with pytest.raises(InvalidJob, match=r"cannot be used|is taken"):
            shop.tenant("globex").enqueue("greet", {"name": "Eve"}, id=taken)
    assert [crew.get(job.id).tenant for job in (waiting, done)] == ["acme", "acme"]
    assert shop.tenant("globex").find().jobs == []


def test_plain_sql_of_the_application_meets_the_same_policies(shop: Treadle, store_url: str) -> None:
    shop.tenant("acme").enqueue("greet", {"name": "Ada"}, key="k")
    shop.tenant("acme").schedules.create("nightly", "greet", {"name": "Ada"}, cron="0 2 * * *")
    url = as_role(store_url, APP)
    assert set(seen_by(url, None).values()) == {0}
    assert set(seen_by(url, "").values()) == {0}
    assert set(seen_by(url, "globex").values()) == {0}
    assert seen_by(url, "acme") | {"seals": 0} == {
        "jobs": 1, "finished": 0, "keys": 1, "events": 1, "schedules": 1, "pauses": 0, "seals": 0,
        "memos": 0,
    }  # fmt: skip
    with psycopg.connect(url) as connection:
        connection.execute("select set_config('treadle.tenant', 'globex', true)")
        assert connection.execute("delete from treadle.jobs").rowcount == 0
        sql = "select treadle.enqueue('greet', '{}', tenant => 'globex')"
        [[made]] = connection.execute(sql).fetchall()
        with pytest.raises(psycopg.errors.InsufficientPrivilege), connection.transaction():
            connection.execute("select treadle.enqueue('greet', '{}', tenant => 'acme')")
    assert [job.id for job in shop.tenant("globex").find().jobs] == [str(made)]


def test_in_the_callers_transaction_its_own_setting_is_as_before_afterwards(shop: Treadle, store_url: str) -> None:
    with psycopg.connect(as_role(store_url, APP)) as connection:
        connection.execute("select set_config('treadle.tenant', 'globex', true)")
        shop.tenant("acme").enqueue("greet", {"name": "Ada"}, tx=connection)
        [[whose]] = connection.execute("select current_setting('treadle.tenant', true)").fetchall()
        assert whose == "globex"
        assert connection.execute("select count(*) from treadle.jobs").fetchone() == (0,)
    assert len(shop.tenant("acme").find().jobs) == 1


def test_nothing_bleeds_between_tenants_that_share_one_connection_of_a_pooler(
    owner: Treadle, store_url: str, cluster: Cluster, pooler: PgBouncer
) -> None:
    url = as_role(store_url.replace(f":{cluster.port}/", f":{pooler.port}/"), APP)
    shop = _with_tasks(Treadle(url))
    wrong: list[str] = []

    def tenant(name: str) -> None:
        own = shop.tenant(name)
        for _ in range(30):
            own.enqueue("greet", {"name": name}, id=new_id())
            wrong.extend(job.tenant for job in own.find(limit=100).jobs if job.tenant != name)
            if set(seen_by(url, None).values()) != {0}:
                wrong.append("a setting outlived its transaction")

    threads = [threading.Thread(target=tenant, args=(f"t{place}",)) for place in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts = [len(shop.tenant(f"t{place}").find(limit=100).jobs) for place in range(6)]
    shop.close()
    assert wrong == []
    assert counts == [30] * 6


@pytest.mark.covers("000-AC-01.d")
def test_an_owner_condition_lets_the_owner_see_its_rows_without_a_setting(owner: Treadle, store_url: str) -> None:
    with psycopg.connect(store_url, autocommit=True) as connection:
        connection.execute(
            "create function is_record_owner(t text) returns boolean language sql stable as"
            " $$ select t = current_setting('shop.owner', true) $$"
        )
    owner.rls(worker_role=WORKER, app_role=APP, owner="is_record_owner(tenant)")
    with psycopg.connect(as_role(store_url, APP)) as connection:
        connection.execute("set shop.owner = 'u1'")
        connection.execute("select treadle.enqueue('greet', '{}', tenant => 'u1')")
        with pytest.raises(psycopg.errors.InsufficientPrivilege), connection.transaction():
            connection.execute("select treadle.enqueue('greet', '{}', tenant => 'u2')")
        assert connection.execute("select tenant from treadle.jobs").fetchall() == [("u1",)]
        connection.commit()
    other = owner.enqueue("greet", {"name": "Bob"}, checked=False, tenant="u2")
    with psycopg.connect(as_role(store_url, APP), autocommit=True) as connection:
        connection.execute("set shop.owner = 'u1'")
        assert connection.execute("update treadle.jobs set priority = 7").rowcount == 1
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("update treadle.jobs set tenant = 'u2'")
        assert connection.execute("delete from treadle.jobs").rowcount == 1
    assert owner.find().jobs == [other]  # as it was


def test_doctor_tells_policies_that_hold_from_policies_with_holes(
    owner: Treadle, crew: Treadle, store_url: str
) -> None:
    def said(app: Treadle) -> list[tuple[str, str]]:
        return [(line.level, line.text) for line in app.doctor() if "row-level" in line.text]

    [(level, text)] = said(crew)
    assert (level, "forced" in text) == ("ok", True)
    [(level, text)] = said(owner)  # a superuser here
    assert (level, "BYPASSRLS" in text) == ("warning", True)
    with psycopg.connect(store_url, autocommit=True) as connection:
        connection.execute("alter table treadle.keys no force row level security")
        connection.execute("drop policy treadle_tenant on treadle.events")
    [(level, text)] = said(crew)
    assert level == "error"
    assert "keys: not forced" in text
    assert "events: no policy treadle_tenant" in text


def test_doctor_finds_the_policy_of_pauses_that_let_a_tenant_lift_every_pause(crew: Treadle, store_url: str) -> None:
    """As `treadle rls` made it before pauses had an owner: migrated since, and not set up again."""
    with psycopg.connect(store_url, autocommit=True) as connection:
        for policy in ("treadle_tenant", "treadle_tenant_insert", "treadle_tenant_update", "treadle_tenant_delete"):
            connection.execute(f"drop policy {policy} on treadle.pauses")
        connection.execute(f"create policy treadle_tenant on treadle.pauses to {APP} using (true) with check (true)")
    [finding] = [line for line in crew.doctor() if "row-level" in line.text]
    assert finding.level == "error"
    assert "pauses: no policy treadle_tenant for select, treadle_tenant_insert" in finding.text
    assert "run `treadle rls` again" in finding.text


def test_the_tables_owner_need_be_no_superuser_to_set_it_up(cluster: Cluster, store_url: str) -> None:
    with psycopg.connect(store_url, autocommit=True) as connection:
        connection.execute("create role boss login")
        connection.execute(f"grant {WORKER} to boss")
        connection.execute(f"grant create on database {connection.info.dbname} to boss")
    try:
        app = Treadle(as_role(store_url, "boss"))
        app.migrate()
        for _ in range(2):
            app.rls(worker_role=WORKER, app_role=APP)
        app.close()
        crew = Treadle(as_role(store_url, WORKER))
        assert [line.level for line in crew.doctor() if "row-level" in line.text] == ["ok"]
        crew.close()
        with psycopg.connect(store_url) as connection:
            rights = connection.execute("select has_schema_privilege(%s, 'treadle', 'create')", [WORKER]).fetchone()
        assert rights == (False,)
    finally:
        with psycopg.connect(store_url, autocommit=True) as connection:
            connection.execute("drop schema if exists treadle cascade; drop owned by boss; drop role boss")


def test_a_schema_with_row_level_security_is_still_as_expected(owner: Treadle) -> None:
    assert owner.check_schema() == []


OLD_GUARD = """
alter trigger rls_guard on treadle.jobs rename to walls_guard;
alter function treadle.rls_guard() rename to walls_guard;
"""
GUARDS = """
select tgname from pg_trigger where tgname like '%\\_guard'
union all select proname from pg_proc where proname like '%\\_guard'
"""


def test_the_guard_of_an_older_treadle_is_replaced_when_it_is_set_up_again(owner: Treadle, store_url: str) -> None:
    with psycopg.connect(store_url, autocommit=True) as connection:
        connection.execute(OLD_GUARD)
        assert owner.check_schema() == []

        owner.rls(worker_role=WORKER, app_role=APP)

        assert connection.execute(GUARDS).fetchall() == [("rls_guard",)] * 2
    assert owner.check_schema() == []


@pytest.mark.parametrize(
    ("roles", "said"),
    [
        ({"worker_role": "W; drop", "app_role": "a"}, "worker_role"),
        ({"worker_role": "w", "app_role": "Ä"}, "app_role"),
        ({"worker_role": "same", "app_role": "same"}, "another role"),
    ],
)
def test_roles_that_cannot_be_are_refused(
    open_engine: Callable[..., object], store_url: str, roles: dict[str, str], said: str
) -> None:
    app = Treadle(store_url)
    with pytest.raises(Exception, match=said):
        app.rls(**roles, only_sql=True)
    app.close()


def test_no_setting_of_a_tenants_session_lets_an_unreadable_job_in(owner: Treadle, store_url: str) -> None:
    """One such row would end every worker's claim and the recovery of all tenants' jobs with an error."""
    insert = "insert into treadle.jobs (tenant, task, due_at) values ('globex', 'greet', '-infinity')"
    with psycopg.connect(as_role(store_url, APP)) as connection:
        connection.execute("select set_config('treadle.tenant', 'globex', true)")
        connection.execute("select set_config('treadle.guarded', 'yes', true)")
        with pytest.raises(psycopg.errors.CheckViolation):
            connection.execute(insert)


def test_a_store_of_an_older_treadle_is_migrated_without_a_hole(owner: Treadle, store_url: str) -> None:
    """Its guard does not know the checks that were constraints then."""
    steps = [sql for step in schema.migrations()[:5] for sql in (step.sql, step.record)]
    security = "alter table old.jobs enable row level security"
    with psycopg.connect(store_url, autocommit=True) as connection:
        for statement in [schema.SCHEMA, schema.LEDGER, *steps, security]:
            connection.execute(statement.replace("@", "old"))
        with Treadle(f"{store_url}?schema=old", auto_migrate=True) as app:
            app.open()
            assert app.check_schema() == []
        for guarded in ("", "yes"):
            connection.execute("select set_config('treadle.guarded', %s, false)", [guarded])
            with pytest.raises(psycopg.errors.CheckViolation):
                connection.execute("insert into old.jobs (tenant, task, due_at) values ('t', 'greet', '-infinity')")

        with Treadle(f"{store_url}?schema=old") as app:
            app.rls(worker_role=WORKER, app_role=APP)
            assert app.check_schema() == []
        named = "select tgname from pg_trigger where tgrelid = 'old.jobs'::regclass and tgname like 'rls%'"
        assert connection.execute(named).fetchall() == [("rls_guard",)]


def remembering(crew: Treadle, job: Job) -> Memo:
    """Let the workers' role claim this job and keep a memo with it."""
    [held] = claim(crew.engine, 1)
    assert held.id == job.id
    memo = Memo("mail", "once", MemoState.DONE, 1, held.claimed_at, held.claimed_at, "7")
    [answer] = crew.engine.extend([Lease(held.id, held.lease_token, memos=[memo])], lease=60)
    assert answer.renewal is Renewal.RENEWED
    settle(crew.engine, held, Succeeded())
    return memo


def test_what_a_job_remembers_is_seen_and_deleted_by_its_tenant_alone(
    shop: Treadle, crew: Treadle, store_url: str
) -> None:
    ours = shop.tenant("acme").enqueue("greet", {"name": "Ada"})
    memo = remembering(crew, ours)
    url = as_role(store_url, APP)
    assert (seen_by(url, "acme")["memos"], seen_by(url, "globex")["memos"]) == (1, 0)
    with psycopg.connect(url) as connection:
        connection.execute("select set_config('treadle.tenant', 'globex', true)")
        assert connection.execute("delete from treadle.memos").rowcount == 0
    assert crew.engine.memos(ours.id) == [memo]
    shop.tenant("acme").delete(ours.id)
    assert crew.engine.memos(ours.id) == []


def test_a_table_that_a_migration_adds_is_kept_apart_as_the_others_are(
    owner: Treadle, crew: Treadle, store_url: str
) -> None:
    """Roles and policies of a store that had row-level security before there were memos."""
    with psycopg.connect(store_url, autocommit=True) as connection:
        connection.execute("drop table treadle.memos")
        connection.execute("delete from treadle.migrations where name = '0015_memos.pre'")
    assert owner.migrate() == ["0015_memos.pre"]
    with psycopg.connect(as_role(store_url, WORKER)) as connection:
        assert all(finding.level == "ok" for finding in rls.examine(connection, "treadle"))
    remembering(crew, _with_tasks(Treadle(as_role(store_url, APP))).tenant("acme").enqueue("greet", {"name": "Ada"}))
    url = as_role(store_url, APP)
    assert (seen_by(url, "acme")["memos"], seen_by(url, "globex")["memos"]) == (1, 0)
