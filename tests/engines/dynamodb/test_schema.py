"""The table itself: made once by whoever comes first, checked, described; and what is said when it is not there."""

import json
import subprocess
import sys
from uuid import uuid4

import boto3
import pytest

from tests.support import dynamo_servers
from tests.support.making import claim, claimed, enqueued, race, settle
from treadle import EngineError, EngineUnavailable, SchemaError, Treadle
from treadle.engines.dynamodb import client, schema
from treadle.engines.values import Ruling
from treadle.model import State
from treadle.model.lifecycle import Succeeded

pytestmark = pytest.mark.server


@pytest.fixture
def name():
    """A table that nobody has made yet; gone afterwards."""
    name = f"t{uuid4().hex[:20]}"
    yield name
    database = raw()
    if name in database.list_tables()["TableNames"]:
        database.delete_table(TableName=name)


@pytest.fixture
def url(name):
    return f"dynamodb://{name}?endpoint={dynamo_servers.shared_dynamodb()}&region=us-east-1"


def raw():
    return boto3.client(
        "dynamodb",
        endpoint_url=dynamo_servers.shared_dynamodb(),
        region_name="us-east-1",
        aws_access_key_id="treadle",
        aws_secret_access_key="treadle",
    )


def described(name):
    return raw().describe_table(TableName=name)["Table"]


def works(engine):
    """Whether jobs go all the way."""
    return settle(engine, claimed(engine, enqueued(engine)), Succeeded()).ruling is Ruling.APPLIED


# ------------------------------------------------------------------------------------------------------ made


def test_migrate_makes_a_table_that_is_billed_on_demand_and_forgets_by_ttl(open_engine, url, name):
    engine = open_engine(url)
    assert engine.migrate() == ["0001_table"]
    live = described(name)
    assert live["KeySchema"] == [
        {"AttributeName": "PK", "KeyType": "HASH"}, {"AttributeName": "SK", "KeyType": "RANGE"},
    ]  # fmt: skip
    assert live["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
    assert live.get("GlobalSecondaryIndexes", []) == live.get("LocalSecondaryIndexes", []) == []
    ttl = raw().describe_time_to_live(TableName=name)["TimeToLiveDescription"]
    assert (ttl["TimeToLiveStatus"], ttl["AttributeName"]) == ("ENABLED", "ttl")
    assert engine.check() == []
    assert works(engine)


def test_migrate_a_second_time_changes_nothing(open_engine, url, name):
    engine = open_engine(url)
    engine.migrate()
    before = raw().scan(TableName=name)["Items"]
    assert engine.migrate() == []
    assert open_engine(f"{url}&spread=8").migrate() == []  # nor does somebody who wants another spread
    assert raw().scan(TableName=name)["Items"] == before


def test_the_halves_are_one_table_before_and_nothing_after(url):
    app = Treadle(url)
    assert app.migrate("pre") == ["0001_table"]
    assert app.migrate("post") == []
    assert app.schema_sql("post") == ""
    app.close()


def test_what_was_cut_off_after_the_table_was_made_is_done_by_the_next_migrate(open_engine, url, name):
    """Its first item and its TTL come after it."""
    engine = open_engine(url)
    raw().create_table(**schema.creation(name))
    assert engine.migrate() == ["0001_table"]
    assert engine.check() == []


def test_a_ttl_that_was_never_turned_on_is_named_and_turned_on(open_engine, url, name):
    engine = open_engine(url)
    engine.migrate()
    off = {"Enabled": False, "AttributeName": "ttl"}
    raw().update_time_to_live(TableName=name, TimeToLiveSpecification=off)
    [said] = engine.check()
    assert "time to live" in said
    assert engine.check(quick=True) == []
    engine.migrate()
    assert engine.check() == []


def test_many_engines_make_one_table(open_engine, url, name):
    engines = [open_engine(f"{url}&spread={spread}") for spread in (4, 8, 16, 32)]
    made = race(4, lambda place: engines[place].migrate())
    assert sorted(made, key=len)[-1] == ["0001_table"]
    [meta] = raw().scan(TableName=name)["Items"]
    assert int(meta["spread"]["N"]) in (4, 8, 16, 32)
    jobs = [enqueued(engine) for engine in engines]  # all of them go by what the table says
    assert all(engine.get([job.id for job in jobs]) == jobs for engine in engines)


def test_two_processes_make_one_table(url, name):
    code = "import sys; from treadle.engines import connect; e = connect(sys.argv[1]); print(e.migrate()); e.open()"
    made = [subprocess.Popen([sys.executable, "-c", code, url], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=60)[0].strip() for process in made]
    assert [process.returncode for process in made] == [0, 0]
    assert set(said) <= {"['0001_table']", "[]"}
    assert "['0001_table']" in said
    assert len(raw().scan(TableName=name)["Items"]) == 1


def test_schema_sql_is_what_boto3_makes_a_table_of(open_engine, url, name):
    engine = open_engine(url)
    raw().create_table(**json.loads(engine.schema_sql()))
    engine.migrate()
    assert engine.check() == []


def test_a_table_that_is_long_in_the_making_is_waited_for_and_then_complained_of(open_engine, url, monkeypatch):
    answers = iter([None, *["CREATING"] * 3, *["ACTIVE"] * 9])
    live = client.Client.call

    def call(self, operation, body, **how):
        if operation == "DescribeTable":
            status = next(answers)
            if status is None:
                raise SchemaError("not there")
            return {"Table": {"TableStatus": status, **schema.creation("t")}}
        return live(self, operation, body, **how)

    monkeypatch.setattr(client.Client, "call", call)
    monkeypatch.setattr(schema.time, "sleep", lambda _: None)
    assert open_engine(url).migrate() == ["0001_table"]
    answers = iter([None, *["CREATING"] * 1000])
    monkeypatch.setattr(schema, "CREATION_TIMEOUT", 0.0)
    with pytest.raises(EngineUnavailable, match="still being made"):
        open_engine(url).migrate()


# ------------------------------------------------------------------------------------------------------ opened


def test_open_without_a_table_says_what_to_do(open_engine, url, name):
    engine = open_engine(url)
    for act in (engine.open, lambda: enqueued(engine), lambda: engine.get([]), lambda: engine.expired(limit=1)):
        with pytest.raises(SchemaError, match=rf"table {name} .*`treadle migrate`.*auto_migrate"):
            act()


def test_open_of_a_table_without_treadle_in_it_says_what_to_do(open_engine, url, name):
    raw().create_table(**schema.creation(name))
    with pytest.raises(SchemaError, match="`treadle migrate`"):
        open_engine(url).open()


def test_auto_migrate_makes_the_table_on_first_use(open_engine, url):
    engine = open_engine(url, auto_migrate=True)
    assert works(engine)
    assert engine.check() == []
    app = Treadle(url, auto_migrate=True)
    assert app.count()[State.SUCCEEDED] == 1
    app.close()


def newer(name, version):
    raw().update_item(
        TableName=name,
        Key={"PK": {"S": "meta"}, "SK": {"S": "meta"}},
        UpdateExpression="set version = :v",
        ExpressionAttributeValues={":v": {"N": str(version)}},
    )


@pytest.mark.parametrize("auto", [False, True])
def test_a_table_of_a_newer_treadle_is_left_alone(open_engine, url, name, auto):
    open_engine(url).migrate()
    newer(name, schema.LAYOUT_VERSION + 1)
    before = raw().scan(TableName=name)["Items"]
    for quick in (False, True):
        [said] = open_engine(url).check(quick=quick)
        assert "newer treadle" in said
    with pytest.raises(SchemaError, match=rf"newer treadle \(layout {schema.LAYOUT_VERSION + 1}, this one knows"):
        open_engine(url, auto_migrate=auto).open()
    assert raw().scan(TableName=name)["Items"] == before


# ----------------------------------------------------------------------------------------------------- checked


def strange(name, *, keys=(("PK", "S"), ("SK", "S")), **options):
    raw().create_table(
        TableName=name,
        AttributeDefinitions=[{"AttributeName": key, "AttributeType": kind} for key, kind in keys],
        KeySchema=[
            {"AttributeName": key, "KeyType": kind} for (key, _), kind in zip(keys, ("HASH", "RANGE"), strict=False)
        ],
        **(options or {"BillingMode": "PAY_PER_REQUEST"}),
    )


STRANGE = {
    "other names": ((("id", "S"), ("at", "S")), "'id': 'HASH', 'at': 'RANGE'"),
    "no sort key": ((("PK", "S"),), "the keys are {'PK': 'HASH'}"),
    "swapped": ((("SK", "S"), ("PK", "S")), "'SK': 'HASH'"),
    "a number": ((("PK", "N"), ("SK", "S")), "the key PK is of type N, expected S"),
    "bytes": ((("PK", "S"), ("SK", "B")), "the key SK is of type B, expected S"),
}


@pytest.mark.parametrize("keys", STRANGE)
def test_a_table_with_other_keys_is_named_and_never_written_to(open_engine, url, name, keys):
    wrong, words = STRANGE[keys]
    strange(name, keys=wrong)
    engine = open_engine(url)
    assert any(words in said for said in engine.check())
    assert engine.check(quick=True)
    assert any(finding.level == "error" and words in finding.text for finding in engine.doctor())
    for act in (engine.open, engine.migrate, open_engine(url, auto_migrate=True).open, lambda: enqueued(engine)):
        with pytest.raises(SchemaError):
            act()
    assert raw().scan(TableName=name)["Count"] == 0


def test_provisioned_billing_is_a_difference_that_does_not_keep_it_from_working(open_engine, url, name):
    strange(name, ProvisionedThroughput={"ReadCapacityUnits": 5, "WriteCapacityUnits": 5})
    engine = open_engine(url)
    engine.migrate()
    assert any("billing is PROVISIONED, expected PAY_PER_REQUEST" in said for said in engine.check())
    assert engine.check(quick=True) == []
    assert works(engine)


def test_check_of_a_table_that_is_not_there_says_so_and_makes_nothing(open_engine, url, name):
    engine = open_engine(url)
    for quick in (False, True):
        [said] = engine.check(quick=quick)
        assert f"table {name}" in said
        assert "does not exist" in said
    assert name not in raw().list_tables()["TableNames"]


# ------------------------------------------------------------------------------------------------------ doctor


def test_doctor_of_a_table_in_order_finds_nothing_wrong(open_engine, url, name):
    engine = open_engine(url)
    engine.migrate()
    findings = engine.doctor()
    assert {finding.level for finding in findings} == {"ok"}
    assert any(f"table {name}" in finding.text and "up to date" in finding.text for finding in findings)
    assert any("clock" in finding.text for finding in findings)
    assert any("polling" in finding.text for finding in findings)


def test_doctor_names_what_is_missing(open_engine, url, name):
    engine = open_engine(url)
    [finding] = engine.doctor()
    assert finding.level == "error"
    assert "treadle migrate" in finding.text
    engine.migrate()
    newer(name, schema.LAYOUT_VERSION + 1)
    assert any(finding.level == "error" and "newer" in finding.text for finding in engine.doctor())


@pytest.mark.parametrize(("ahead", "level"), [(0.0, "ok"), (5.0, "warning"), (-5.0, "warning")])
def test_doctor_says_when_this_machines_clock_is_wrong(open_engine, url, monkeypatch, ahead, level):
    engine = open_engine(url)
    engine.migrate()
    heed = client.Client._note_drift

    def late(self, date):
        heed(self, date)
        self.drift = None if self.drift is None else self.drift + ahead

    monkeypatch.setattr(client.Client, "_note_drift", late)
    [finding] = [finding for finding in engine.doctor() if "clock" in finding.text]
    assert finding.level == level


REFUSED = {"DescribeTable", "DescribeTimeToLive"}


def test_a_worker_needs_no_right_to_describe_the_table(open_engine, url, monkeypatch):
    open_engine(url).migrate()
    call = client.Client.call

    def allowed(self, operation, body, **options):
        if operation in REFUSED:
            raise EngineError(f"not authorized to perform {operation}")
        return call(self, operation, body, **options)

    monkeypatch.setattr(client.Client, "call", allowed)
    engine = open_engine(url)
    assert engine.check(quick=True) == []
    first = engine.doctor()[0]
    assert (first.level, "not compared" in first.text) == ("warning", True)
    enqueued(engine)
    assert len(claim(engine)) == 1
