"""app.override: somebody tests a module whose app was made with a URL, and wants none of it in the real store."""

import asyncio
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest

from tests.support import provision
from tests.support.marks import any_store
from tests.support.workbench import until
from treadle import ConfigError, NotPossible, State, Task, Treadle
from treadle.app.store import Store
from treadle.engines.contract import Engine
from treadle.testing import FakeClock, assert_enqueued, run_until_idle

MEMORY = "sqlite:///:memory:"
REAL = "sqlite:///real.db"


@pytest.fixture
def shop() -> Iterator[Treadle]:
    """The app of a module, as its author has written it: with the URL in the code."""
    with Treadle(REAL) as app:
        yield app


@pytest.fixture
def send(shop: Treadle) -> Task:
    @shop.task(queue="mail")
    def send(to: str) -> str:
        return f"sent to {to}"

    return send


def test_what_is_enqueued_inside_stays_inside_and_the_real_store_is_never_made(shop: Treadle, send: Task) -> None:
    with shop.override(MEMORY) as same:
        assert same is shop
        send.enqueue("ada")
        shop.enqueue("send", {"to": "bob"})
        assert [job.result for job in run_until_idle(shop)] == ["sent to ada", "sent to bob"]
    assert not Path("real.db").exists()


def test_afterwards_the_app_has_its_own_store_again(shop: Treadle, send: Task) -> None:
    first = send.enqueue("ada")
    with shop.override(MEMORY):
        assert shop.find().jobs == []
        send.enqueue("bob")
    assert [job.id for job in shop.find().jobs] == [first.id]
    assert shop.settings.url == REAL


def test_it_ends_with_an_error_too(shop: Treadle, send: Task) -> None:
    with pytest.raises(ValueError, match="in the test"), shop.override(MEMORY):
        raise ValueError("in the test")
    send.enqueue("ada")
    assert Path("real.db").exists()


@any_store
def test_any_store_can_take_the_place(shop: Treadle, send: Task, store_url: str, app: Treadle) -> None:
    with shop.override(store_url):
        job = send.enqueue("ada")
        assert app.get(job.id).payload == {"to": "ada"}
    assert not Path("real.db").exists()


@any_store
def test_the_handle_of_a_tenant_made_before_follows(shop: Treadle, send: Task, store_url: str) -> None:
    acme, other = shop.tenant("acme"), shop.tenant("other")
    acme.using(send).enqueue("in the real store")
    with shop.override(store_url):
        assert acme.find().jobs == []
        job = acme.using(send).enqueue("ada")
        acme.schedules.create("daily", "send", {"to": "ada"}, every="1d")
        assert [found.id for found in acme.find().jobs] == [job.id]
        assert other.find().jobs == []
        assert other.schedules.list() == []
    assert [found.payload["to"] for found in acme.find().jobs] == ["in the real store"]
    assert shop.schedules.list() == []


def test_declared_schedules_hooks_and_follow_ups_keep_working(shop: Treadle) -> None:
    seen: list[str] = []
    clock = FakeClock(datetime(2026, 3, 1, 5, tzinfo=UTC))

    @shop.task
    def after() -> str:
        return "after"

    @shop.task(cron="0 6 * * *", on_succeeded="after")
    def report() -> str:
        return "reported"

    @shop.hooks.around_run
    def note(ctx) -> Iterator[None]:
        seen.append(ctx.job.task)
        yield

    for _ in range(2):  # the second store knows nothing of the first
        with shop.override(MEMORY, clock=clock):
            assert run_until_idle(shop) == []
            clock.advance(days=1)
            assert [job.result for job in run_until_idle(shop)] == ["reported", "after"]
    assert seen == ["report", "after"] * 2


def test_the_clock_is_the_one_that_is_given_and_the_apps_own_comes_back(send: Task, shop: Treadle) -> None:
    clock = FakeClock()
    with shop.override(MEMORY, clock=clock):
        assert send.enqueue("ada").created_at == clock.now()
    assert abs((send.enqueue("ada").created_at - datetime.now(UTC)).total_seconds()) < 3600


def test_overrides_nest_and_an_inner_one_keeps_what_it_does_not_name(shop: Treadle, send: Task, tmp_path: Path) -> None:
    clock = FakeClock()
    with shop.override(f"sqlite:///{tmp_path}/outer.db", clock=clock, tenant_required=True):
        job = send.using(tenant="acme").enqueue("ada")
        with shop.override(concurrency=3):
            assert (shop.settings.concurrency, shop.settings.tenant_required) == (3, True)
            assert shop.get(job.id).created_at == clock.now()  # the same file, by the same clock
            with shop.override(MEMORY):
                assert shop.find().jobs == []
            assert shop.engine.now() == clock.now()
        assert shop.settings.concurrency == 10
        assert [found.id for found in shop.find().jobs] == [job.id]
    assert shop.settings.tenant_required is False


def test_two_that_end_in_the_wrong_order_leave_the_apps_own_store(shop: Treadle) -> None:
    first, second = shop.override(MEMORY), shop.override("sqlite:///second.db")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert shop.settings.url == "sqlite:///second.db"
    second.__exit__(None, None, None)
    assert shop.settings.url == REAL


def test_settings_given_by_hand_hold_inside_too(shop: Treadle) -> None:
    """As `treadle --url` does it, and programs that read their settings themselves."""
    shop.settings = shop.settings.model_copy(update={"concurrency": 4, "url": "sqlite:///other.db"})
    with shop.override(MEMORY):
        assert (shop.settings.concurrency, shop.settings.url) == (4, MEMORY)
    assert (shop.settings.concurrency, shop.settings.url) == (4, "sqlite:///other.db")


def test_the_url_beats_the_environment_and_no_listener_goes_to_the_real_server(
    shop: Treadle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TREADLE_URL", "sqlite:///environment.db")
    monkeypatch.setenv("TREADLE_LISTEN_URL", "postgresql://production/app")
    with shop.override(MEMORY):
        assert (shop.settings.url, shop.settings.listen_url) == (MEMORY, MEMORY)


def test_a_wrong_setting_is_named(shop: Treadle) -> None:
    with pytest.raises(ConfigError, match="concurency: is not a setting"), shop.override(MEMORY, concurency=3):
        shop.find()
    assert shop.settings.concurrency == 10


def test_it_decorates_a_test(shop: Treadle, send: Task) -> None:
    @shop.override(MEMORY)
    def test(to: str, *, again: bool = True) -> str:
        """A test."""
        send.enqueue(to)
        if again:
            test("inner", again=False)  # nested: a store of its own
        assert len(shop.find().jobs) == 1
        return to

    assert (test("ada"), test("bob")) == ("ada", "bob")
    assert (test.__name__, test.__doc__) == ("test", "A test.")
    assert not Path("real.db").exists()


def test_it_decorates_an_async_test_until_its_end(shop: Treadle, send: Task) -> None:
    @shop.override(MEMORY)
    async def test() -> State:
        await asyncio.sleep(0)
        return (await send.aenqueue("ada")).state

    assert asyncio.run(test()) is State.PENDING
    assert not Path("real.db").exists()


def test_what_it_cannot_decorate_is_refused_at_once(shop: Treadle) -> None:
    def fixture() -> Iterator[None]:
        yield

    async def async_fixture() -> Iterator[None]:
        yield

    for wrong in (fixture, async_fixture, type("TestCase", (), {})):
        with pytest.raises(ConfigError, match=r"with app\.override"):
            shop.override(MEMORY)(wrong)


def test_threads_of_the_test_see_it_too(shop: Treadle, send: Task) -> None:
    """As an endpoint does that runs in a thread pool."""
    with shop.override(MEMORY):
        threads = [threading.Thread(target=send.enqueue, args=(str(n),)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(shop.find().jobs) == 8
    assert not Path("real.db").exists()


def test_it_is_refused_while_a_worker_of_the_app_runs(shop: Treadle, send: Task) -> None:
    async def main() -> None:
        async with shop.worker(name="live", queues=["mail"]):
            with pytest.raises(NotPossible, match="worker live of this app runs"), shop.override(MEMORY):
                pass
            assert shop.settings.url == REAL
        with shop.override(MEMORY):
            pass

    asyncio.run(main())


def test_a_worker_started_inside_works_there_and_must_stop_there(shop: Treadle, send: Task) -> None:
    async def run(job_id: str) -> None:
        async with shop.worker(queues=["mail"]):
            while not shop.get(job_id).state.final:
                await asyncio.sleep(0.01)

    with shop.override(MEMORY):
        job = send.enqueue("ada")
        asyncio.run(run(job.id))
        assert shop.get(job.id).result == "sent to ada"

    async def forgotten() -> None:
        worker = shop.worker(name="forgotten", queues=["mail"])
        with pytest.raises(NotPossible, match="worker forgotten was started inside"), shop.override(MEMORY):
            await worker.__aenter__()
        assert shop.settings.url == REAL
        await worker.__aexit__(None, None, None)

    asyncio.run(forgotten())


def test_one_that_holds_cannot_be_entered_again(shop: Treadle) -> None:
    override = shop.override(MEMORY)
    with override, pytest.raises(NotPossible, match="holds already"):
        override.__enter__()
    with override:
        assert shop.settings.url == MEMORY
    assert shop.settings.url == REAL


@pytest.mark.server
def test_its_connections_are_closed_at_the_end(shop: Treadle, send: Task) -> None:
    url = provision.fresh_database(provision.shared_postgres())
    with psycopg.connect(url, autocommit=True) as admin:
        others = "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
        with shop.override(url, auto_migrate=True):
            assert_enqueued(shop, "send", id=send.enqueue("ada").id)
            assert admin.execute(others).fetchone() != (0,)
        until(lambda: admin.execute(others).fetchone() == (0,), "the end of its connections")
    provision.drop_database(url)


def test_an_error_in_the_engine_of_a_store_is_not_answered_with_another_engine() -> None:
    class Broken(Store):
        @property
        def engine(self) -> Engine:  # type: ignore[override]
            raise AttributeError("a bug")

    with pytest.raises(AttributeError, match="a bug"):
        Broken({}, {"url": "sqlite:///:memory:"}, None).engine  # noqa: B018
