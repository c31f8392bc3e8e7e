"""`tx=[]` collects items: the application's own put and ours commit together, or neither does."""

import sqlite3

import boto3
import pytest

from tests.support import dynamo_servers
from treadle import Context, KeyTaken, Retry, Treadle, Unique
from treadle.errors import ConfigError, EngineError, InvalidJob, LeaseLost
from treadle.model import State
from treadle.testing import run_until_idle


@pytest.fixture
def app(store_url):
    app = Treadle(store_url)
    yield app
    app.close()


@pytest.fixture
def welcome(app):
    @app.task
    def welcome(user: str) -> str:
        return f"welcome {user}"

    return welcome


@pytest.fixture
def database():
    return boto3.client(
        "dynamodb",
        endpoint_url=dynamo_servers.shared_dynamodb(),
        region_name="us-east-1",
        aws_access_key_id="x",
        aws_secret_access_key="x",
    )


def order(app, number, **condition):
    """The application's own put, in the same table for shortness."""
    key = {"PK": {"S": f"order#{number}"}, "SK": {"S": "order"}}
    return {"Put": {"TableName": app.engine.client.table, "Item": key, **condition}}


def has_order(app, database, number):
    key = order(app, number)["Put"]["Item"]
    return "Item" in database.get_item(TableName=app.engine.client.table, Key=key, ConsistentRead=True)


ONCE = Retry(max_attempts=1)
IMPOSSIBLE = {"ConditionExpression": "attribute_exists(PK)"}


def test_a_job_and_the_applications_own_item_commit_together(app, welcome, database):
    items = [order(app, 1)]
    job = welcome.using(tx=items).enqueue("Ada")
    assert app.find().jobs == []

    database.transact_write_items(TransactItems=items)

    assert [found.id for found in app.find().jobs] == [job.id]
    assert has_order(app, database, 1)
    assert [done.result for done in run_until_idle(app)] == ["welcome Ada"]


def test_a_transaction_that_is_cancelled_leaves_no_job(app, welcome, database):
    items = [order(app, 1, **IMPOSSIBLE)]
    welcome.using(tx=items).enqueue("Ada")

    with pytest.raises(database.exceptions.TransactionCanceledException):
        database.transact_write_items(TransactItems=items)

    assert app.find().jobs == []
    assert not has_order(app, database, 1)


def test_a_list_that_is_never_committed_stores_nothing(app, welcome):
    welcome.using(tx=[], key="k", unique="ever").enqueue("Ada")

    assert app.find().jobs == []
    assert welcome.using(key="k", unique="ever").enqueue("Ada").state is State.PENDING


def test_several_jobs_and_keys_go_into_one_transaction(app, welcome, database):
    items = []
    jobs = [welcome.using(tx=items, unique="ever", key=f"k{n}").enqueue(str(n)) for n in range(5)]
    again = welcome.using(tx=items, unique="ever", key="k3").enqueue("again")

    database.transact_write_items(TransactItems=items)

    assert again.id == jobs[3].id
    assert {job.id for job in app.find().jobs} == {job.id for job in jobs}


def test_a_taken_key_answers_with_the_first_job_and_leaves_the_list_usable(app, welcome, database):
    first = welcome.using(key="k", unique="ever").enqueue("Ada")
    items = [order(app, 1)]

    assert welcome.using(tx=items, key="k", unique="ever").enqueue("Bob").id == first.id
    with pytest.raises(KeyTaken):
        welcome.using(tx=items, key="k", unique=Unique("ever", on_conflict="raise")).enqueue("Bob")

    assert items == [order(app, 1)]
    database.transact_write_items(TransactItems=items)


def test_a_key_that_is_taken_before_the_commit_cancels_the_transaction(app, welcome, database):
    items = [order(app, 1)]
    welcome.using(tx=items, key="k", unique="ever").enqueue("Ada")
    first = welcome.using(key="k", unique="ever").enqueue("Bob")

    with pytest.raises(database.exceptions.TransactionCanceledException):
        database.transact_write_items(TransactItems=items)

    assert [job.id for job in app.find().jobs] == [first.id]


def test_replacing_in_a_list_edits_the_pending_job(app, welcome, database):
    first = welcome.using(key="k", unique="pending").enqueue("Ada")
    items = []
    told = welcome.using(tx=items, key="k", unique=Unique("pending", on_conflict="replace")).enqueue("Bob")

    assert told.id == first.id
    assert app.get(first.id).payload == {"user": "Ada"}
    database.transact_write_items(TransactItems=items)
    assert app.get(first.id).payload == {"user": "Bob"}


def test_a_committed_list_that_is_committed_again_runs_nothing_twice(app, welcome, database):
    items = []
    welcome.using(tx=items).enqueue("Ada")
    database.transact_write_items(TransactItems=items)
    run_until_idle(app)

    with pytest.raises(database.exceptions.TransactionCanceledException):
        database.transact_write_items(TransactItems=items)

    assert run_until_idle(app) == []


def test_more_items_than_a_transaction_takes_are_refused_and_the_list_stays(app, welcome):
    items = [order(app, number) for number in range(99)]

    with pytest.raises(EngineError, match="101 items are more than the 100"):
        welcome.using(tx=items).enqueue("Ada")

    assert len(items) == 99


def test_a_value_that_cannot_be_stored_leaves_the_list_as_it_was(app, welcome):
    items = []

    with pytest.raises(InvalidJob):
        welcome.using(tx=items).enqueue("\0")

    assert items == []


@pytest.mark.covers("003-S22.b")
@pytest.mark.parametrize("commits", [True, False])
def test_effect_and_completion_commit_together(app, database, commits):
    @app.task(retry=ONCE)
    def ship(ctx: Context, number: int) -> None:
        items = [order(app, number) if commits else order(app, number, **IMPOSSIBLE)]
        ctx.settle(items, result="shipped")
        database.transact_write_items(TransactItems=items)

    job = ship.enqueue(7)
    run_until_idle(app)

    assert has_order(app, database, 7) is commits
    assert app.get(job.id).state is (State.SUCCEEDED if commits else State.FAILED)


def test_a_settled_list_that_was_not_committed_is_a_failed_attempt(app):
    @app.task(retry=ONCE)
    def ship(ctx: Context, number: int) -> None:
        ctx.settle([], result=number)

    job = ship.enqueue(7)
    run_until_idle(app)

    found = app.get(job.id)
    assert found.state is State.FAILED
    assert "commit" in found.error.message


def test_a_zombies_list_is_cancelled_by_its_fence(app, welcome, database):
    job = welcome.enqueue("Ada")
    stolen = {}

    @app.task(name="other", retry=ONCE)
    def other(ctx: Context) -> None:
        items = []
        ctx.settle(items, result=1)
        app.cancel(ctx.job.id)  # a newer revision, before the commit
        with pytest.raises(database.exceptions.TransactionCanceledException):
            database.transact_write_items(TransactItems=items)
        stolen["seen"] = True

    other.enqueue()
    run_until_idle(app)

    assert stolen == {"seen": True}
    assert app.get(job.id).state is State.SUCCEEDED


def test_settling_twice_in_one_list_is_refused(app):
    seen = []

    @app.task(retry=ONCE)
    def ship(ctx: Context) -> None:
        items = []
        ctx.settle(items)
        try:
            ctx.settle(items)
        except (EngineError, LeaseLost, RuntimeError) as error:
            seen.append(str(error))
        raise ValueError("done")

    ship.enqueue()
    run_until_idle(app)

    assert len(seen) == 1


def test_a_list_that_frees_a_key_cannot_take_it_too(app, database):
    told = []

    @app.task(retry=ONCE, unique="active")
    def ship(ctx: Context) -> None:
        items = []
        ctx.settle(items)
        with pytest.raises(EngineError, match="frees the key 'k'"):
            ship.using(tx=items, key="k").enqueue()
        database.transact_write_items(TransactItems=items)
        told.append(ship.using(key="k", run_after="1h").enqueue().state)

    ship.using(key="k").enqueue()
    run_until_idle(app)

    assert told == [State.PENDING]


def test_items_of_tables_with_other_keys_count_too(app, welcome):
    items = [{"Put": {"TableName": "orders", "Item": {"number": {"N": str(n)}}}} for n in range(99)]

    with pytest.raises(EngineError, match="101 items"):
        welcome.using(tx=items).enqueue("Ada")


def test_replacing_what_is_new_in_the_same_list_is_refused(app, welcome):
    items = []
    replacing = welcome.using(tx=items, key="k", unique=Unique("pending", on_conflict="replace"))
    replacing.enqueue("Ada")

    with pytest.raises(EngineError, match="is new in this list"):
        replacing.enqueue("Bob")


def test_a_second_enqueue_of_a_key_is_told_the_whole_first_job_however_large(app, welcome):
    items = []
    first = welcome.using(tx=items, key="k", unique="ever").enqueue("A" * 5_000)

    assert welcome.using(tx=items, key="k", unique="ever").enqueue("Bob").payload == first.payload


def test_a_large_payload_in_the_callers_transaction_arrives_as_it_was_given(app, welcome, database):
    items = []
    welcome.using(tx=items).enqueue("A" * 5_000)

    database.transact_write_items(TransactItems=items)

    assert [done.result for done in run_until_idle(app)] == [f"welcome {'A' * 5_000}"]


def test_a_list_for_an_app_on_another_store_is_refused(tmp_path):
    app = Treadle(f"sqlite:///{tmp_path}/t.db")

    @app.task
    def welcome(user: str) -> None: ...

    with pytest.raises(ConfigError, match="not in DynamoDB"):
        welcome.using(tx=[]).enqueue("Ada")
    app.close()


def test_a_connection_for_an_app_on_dynamodb_is_refused(app, welcome, tmp_path):
    with sqlite3.connect(tmp_path / "t.db") as connection, pytest.raises(ConfigError, match="pass a list"):
        welcome.using(tx=connection).enqueue("Ada")
    connection.close()
