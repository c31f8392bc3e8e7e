"""From a URL to a table: what is understood, what is refused before anything is sent, and what is never shown."""

import json
import logging
import re
import socket
import subprocess
import sys
import threading
import time
import traceback
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import botocore.exceptions
import botocore.session
import pytest
from botocore.credentials import RefreshableCredentials

from tests.support import dynamo_servers
from treadle import ConfigError, EngineError, EngineUnavailable, Treadle
from treadle.engines import connect
from treadle.engines.dynamodb import access, client, connection
from treadle.model import State

SECRET = "s3cret/never+shown=to00anybody"
NOBODY_THERE = "http://127.0.0.1:1"


@pytest.fixture
def patience(monkeypatch):
    """`patience(0.5)`: calls go on trying for so long, and wait a tenth of a second for an answer."""

    def set_patience(seconds):
        monkeypatch.setattr(client, "RETRY_FOR", seconds)
        monkeypatch.setattr(connection, "READ_TIMEOUT", 0.1)
        monkeypatch.setattr(connection, "CONNECT_TIMEOUT", 0.1)
        for method in (client.Client.call, client.Client.write):
            monkeypatch.setitem(method.__kwdefaults__, "retry_for", seconds)

    return set_patience


class Listener:
    """A server that remembers what it was sent and answers what it was told."""

    def __init__(self) -> None:
        self.headers: list[dict[str, str]] = []
        self.answer: tuple[int, bytes] = (200, b'{"TableNames": []}')
        listener = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                listener.headers.append(dict(self.headers.items()))
                status, body = listener.answer
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def refuse(self, code: str, message: str = "no", status: int = 400) -> None:
        said = {"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": message}
        self.answer = (status, json.dumps(said).encode())

    @property
    def signed_with(self) -> tuple[str, str]:
        """The key id and the region of the last request."""
        found = re.search(r"Credential=([^/]+)/\d+/([^/]+)/dynamodb/", self.headers[-1]["Authorization"])
        return (found[1], found[2]) if found else ("", "")

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def listener():
    listener = Listener()
    yield listener
    listener.close()


def asked(engine, patience=0.0):
    return engine.client.call("ListTables", {}, retry_for=patience)


# ----------------------------------------------------------------------------------------- what is understood


@pytest.mark.parametrize("name", ["jobs", "Jobs", "a.b-c_9", "x" * 255, "123"])
@pytest.mark.parametrize("scheme", ["dynamodb", "DynamoDB"])
def test_a_table_is_named_as_aws_names_it(open_engine, scheme, name):
    assert open_engine(f"{scheme}://{name}?region=eu-central-1").client.table == name
    assert open_engine(f"{scheme}://{name}/?region=eu-central-1").client.table == name


def test_the_options_of_a_url_reach_the_engine(open_engine):
    engine = open_engine("dynamodb://jobs?region=eu-west-1&endpoint=http://localhost:8000&shards=8&spread=16&skew=1.5")
    assert engine.client.where == "table jobs at http://localhost:8000"
    assert (engine._ranges.shards, engine._spread) == (8, 16)
    assert engine._skew == 1.5


@pytest.mark.parametrize("region", ["eu-central-1", "us-gov-west-1", "cn-north-1"])
def test_without_an_endpoint_the_address_is_the_regions_own(open_engine, monkeypatch, region):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA1")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    engine = open_engine(f"dynamodb://jobs?region={region}")
    engine.client._connect()
    assert re.fullmatch(rf"https://dynamodb\.{region}\.amazonaws\.com(\.cn)?", engine.client._url)


def test_nothing_is_sent_before_it_is_needed(open_engine, listener):
    engine = open_engine(f"dynamodb://jobs?endpoint={listener.url}")
    app = Treadle(f"dynamodb://jobs?endpoint={listener.url}")
    app.register("greet", lambda: None)
    engine.close()
    app.close()
    assert listener.headers == []


# -------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    "url",
    [
        "dynamodb://", "dynamodb:///", "dynamodb:jobs", "dynamodb://ab", f"dynamodb://{'x' * 256}",
        "dynamodb://jobs/more", "dynamodb://jobs:8000", "dynamodb://jo%20bs", "dynamodb://jobs und mehr",
        "dynamodb://[jobs", "dynamodb://jobs#x", "dynamodb://jobs?region=eu-west-1#x", "dynamodb://jöbs",
    ],
)  # fmt: skip
def test_a_url_that_names_no_table_says_how_to_write_one(url):
    with pytest.raises(ConfigError, match=r"dynamodb://table\?region="):
        connect(url)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("regoin=eu-west-1", ["regoin", "region"]),
        ("shards=0", ["shards='0'", "1 to 256"]),
        ("shards=257", ["shards='257'", "1 to 256"]),
        ("shards=four", ["shards='four'", "1 to 256"]),
        ("shards=4.5", ["shards='4.5'", "1 to 256"]),
        ("shards=", ["shards=''", "1 to 256"]),
        ("spread=0", ["spread='0'", "1 to 256"]),
        ("spread=1000", ["spread='1000'", "1 to 256"]),
        ("skew=-1", ["skew='-1'", "0 to 60"]),
        ("skew=nan", ["skew='nan'", "0 to 60"]),
        ("skew=inf", ["skew='inf'", "0 to 60"]),
        ("endpoint=localhost:8000", ["endpoint", "http://localhost:8000"]),
        ("endpoint=ftp://localhost", ["endpoint", "http://localhost:8000"]),
        ("endpoint=%00", ["endpoint", "http://localhost:8000"]),
        ("endpoint=", ["endpoint", "http://localhost:8000"]),
        ("endpoint=http://", ["endpoint", "http://localhost:8000"]),
        ("endpoint=http://user:word@localhost", ["endpoint", "http://localhost:8000"]),
    ],
)
def test_an_option_that_cannot_be_meant_is_named_with_what_could(query, words):
    with pytest.raises(ConfigError) as refused:
        connect(f"dynamodb://jobs?{query}")
    assert str(refused.value).startswith("url: ")
    assert all(word in str(refused.value) for word in words)


def test_without_the_library_the_way_out_is_said():
    code = (
        "import sys; sys.modules['botocore'] = None\n"
        "from treadle import ConfigError\n"
        "from treadle.engines import connect\n"
        "try: connect('dynamodb://jobs')\n"
        "except ConfigError as error: print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout
    assert "pip install 'treadle[dynamodb]'" in said


# ------------------------------------------------------------------------------------- credentials and regions


def test_without_credentials_the_ways_to_give_them_are_said(open_engine):
    with pytest.raises(ConfigError, match=r"AWS_ACCESS_KEY_ID.*profile.*role"):
        asked(open_engine("dynamodb://jobs?region=eu-west-1"))


def test_an_emulator_needs_neither_credentials_nor_a_region(open_engine, listener):
    asked(open_engine(f"dynamodb://jobs?endpoint={listener.url}"))
    assert listener.signed_with == ("local", "us-east-1")


def test_without_a_region_the_ways_to_give_one_are_said(open_engine, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA1")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    with pytest.raises(ConfigError, match=r"AWS_REGION.*region=") as refused:
        asked(open_engine("dynamodb://jobs"))
    assert SECRET not in str(refused.value)


def test_credentials_come_from_the_environment_with_their_session(open_engine, listener, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAENV")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "a-session")
    asked(open_engine(f"dynamodb://jobs?endpoint={listener.url}&region=eu-west-3"))
    assert listener.signed_with == ("AKIAENV", "eu-west-3")
    assert listener.headers[-1]["X-Amz-Security-Token"] == "a-session"
    assert SECRET not in json.dumps(listener.headers)


@pytest.fixture
def profile(monkeypatch, tmp_path):
    """A file with two profiles, and their regions in another."""
    credentials, config = tmp_path / "credentials", tmp_path / "config"
    credentials.write_text(
        f"[default]\naws_access_key_id=AKIADEFAULT\naws_secret_access_key={SECRET}\n"
        f"[night]\naws_access_key_id=AKIANIGHT\naws_secret_access_key={SECRET}\n"
    )
    config.write_text("[default]\nregion=eu-north-1\n[profile night]\nregion=ap-south-1\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))


def test_credentials_and_the_region_come_from_a_profile(open_engine, listener, profile, monkeypatch):
    url = f"dynamodb://jobs?endpoint={listener.url}"
    asked(open_engine(url))
    assert listener.signed_with == ("AKIADEFAULT", "eu-north-1")
    monkeypatch.setenv("AWS_PROFILE", "night")
    asked(open_engine(url))
    assert listener.signed_with == ("AKIANIGHT", "ap-south-1")
    asked(open_engine(f"{url}&region=sa-east-1"))  # what the URL says wins
    assert listener.signed_with == ("AKIANIGHT", "sa-east-1")


@pytest.mark.parametrize("variable", ["AWS_REGION", "AWS_DEFAULT_REGION"])
def test_a_region_comes_from_the_environment(open_engine, listener, monkeypatch, variable):
    monkeypatch.setenv(variable, "ca-central-1")
    asked(open_engine(f"dynamodb://jobs?endpoint={listener.url}"))
    assert listener.signed_with[1] == "ca-central-1"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"AWS_PROFILE": "nobody"}, "nobody"),
        ({"AWS_ACCESS_KEY_ID": "AKIA1"}, "AWS_SECRET_ACCESS_KEY"),
        ({"AWS_ACCESS_KEY_ID": "AKIA1", "AWS_SECRET_ACCESS_KEY": ""}, "AWS_SECRET_ACCESS_KEY"),
    ],
)
@pytest.mark.parametrize("endpoint", ["", "&endpoint=http://127.0.0.1:1"])
def test_half_of_the_credentials_are_a_mistake_that_is_named(open_engine, monkeypatch, settings, words, endpoint):
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=words):
        asked(open_engine(f"dynamodb://jobs?region=eu-west-1{endpoint}"))


def test_a_file_of_settings_that_is_none_is_named(open_engine, monkeypatch, tmp_path):
    broken = tmp_path / "broken"
    broken.write_text("this is no ini file\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(broken))
    with pytest.raises(ConfigError, match="broken"):
        asked(open_engine("dynamodb://jobs"))


def test_credentials_that_cannot_be_fetched_are_an_engines_error_with_the_cause(open_engine, listener, monkeypatch):
    """A role whose service does not answer: botocore tells at the moment of signing."""
    engine = open_engine(f"dynamodb://jobs?endpoint={listener.url}&region=eu-west-1")
    asked(engine)

    class Expired:
        def get_frozen_credentials(self):
            raise botocore.exceptions.CredentialRetrievalError(provider="iam-role", error_msg="no answer")

    monkeypatch.setattr(engine.client, "_credentials", Expired())
    with pytest.raises(EngineError, match="iam-role"):
        asked(engine)


# ---------------------------------------------------------------------------------------- what is never shown


@pytest.fixture
def secret(monkeypatch, caplog):
    """Credentials whose secret must not be seen; `check(error)` looks in its text, its causes and all logs."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIASHOWN")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "a-session")
    caplog.set_level(logging.DEBUG)

    def check(error):
        said = "".join(traceback.format_exception(error)) + repr(error)
        assert SECRET not in said + caplog.text
        assert "a-session" not in said  # botocore's own log of what it signs, at debug level, has it

    return check


@pytest.mark.parametrize(
    "url",
    [
        f"dynamodb://AKIA1:{SECRET}@jobs",
        f"dynamodb://jobs?aws_secret_access_key={SECRET}",
        f"dynamodb://jobs?endpoint=http://AKIA1:{SECRET}@localhost:8000",
        f"dynamodb://jobs#{SECRET}",
    ],
)
def test_a_secret_in_the_url_is_refused_without_being_shown(url):
    with pytest.raises(ConfigError) as refused:
        connect(url)
    assert SECRET not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize(
    ("code", "way_out"),
    [
        ("AccessDeniedException", "policy"),
        ("UnrecognizedClientException", "credentials"),
        ("ExpiredTokenException", "credentials"),
    ],
)
def test_a_refusal_of_access_says_so_without_the_secret(open_engine, listener, secret, code, way_out):
    listener.refuse(code, "User: arn:aws:iam::1:user/ada is not authorized to perform: dynamodb:ListTables")
    with pytest.raises(EngineError, match=way_out) as refused:
        asked(open_engine(f"dynamodb://jobs?endpoint={listener.url}&region=eu-west-1"))
    assert not isinstance(refused.value, EngineUnavailable)  # repeating does not help
    assert len(listener.headers) == 1
    secret(refused.value)


def test_an_endpoint_that_does_not_answer_is_named_without_the_secret(open_engine, secret, patience):
    patience(0.1)
    with pytest.raises(EngineUnavailable, match=r"127\.0\.0\.1:1.*repeating is safe") as refused:
        open_engine(f"dynamodb://jobs?endpoint={NOBODY_THERE}&region=eu-west-1").open()
    secret(refused.value)


# ------------------------------------------------------------------------------------ an endpoint out of reach


def test_an_endpoint_where_nobody_listens_gives_up_when_patience_is_over(open_engine, patience):
    patience(0.5)
    engine = open_engine(f"dynamodb://jobs?endpoint={NOBODY_THERE}")
    start = time.monotonic()
    with pytest.raises(EngineUnavailable):
        engine.open()
    assert 0.4 <= time.monotonic() - start <= 0.5 + 1.0 + 1.0  # a last pause, and a busy machine


def test_an_endpoint_that_listens_and_never_answers_gives_up_when_patience_is_over(open_engine, patience):
    patience(0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        engine = open_engine(f"dynamodb://jobs?endpoint=http://127.0.0.1:{silent.getsockname()[1]}")
        start = time.monotonic()
        with pytest.raises(EngineUnavailable, match="does not answer"):
            engine.open()
    assert 0.4 <= time.monotonic() - start <= 0.5 + 1.0 + 1.0


def test_patience_and_one_answer_together_are_about_ten_seconds():
    assert client.RETRY_FOR + connection.CONNECT_TIMEOUT + connection.READ_TIMEOUT <= 15
    assert 5 <= client.RETRY_FOR <= 10


@pytest.mark.parametrize(
    "answer", [(200, b"<html>welcome</html>"), (404, b"not found"), (502, b"<html>bad gateway</html>"), (200, b"")]
)
def test_an_endpoint_that_speaks_something_else_is_one_that_does_not_answer(open_engine, listener, patience, answer):
    patience(0.1)
    listener.answer = answer
    with pytest.raises(EngineUnavailable):
        open_engine(f"dynamodb://jobs?endpoint={listener.url}").open()


def test_an_error_that_nobody_foresaw_is_an_engines_error_with_its_name(open_engine, listener):
    listener.refuse("SomethingNewException", "who would have thought")
    with pytest.raises(EngineError, match="SomethingNewException: who would have thought"):
        asked(open_engine(f"dynamodb://jobs?endpoint={listener.url}"))


def test_an_app_on_a_table_out_of_reach_says_so_once_it_is_used(patience):
    patience(0.1)
    app = Treadle(f"dynamodb://jobs?endpoint={NOBODY_THERE}")
    greet = app.register("greet", lambda: None)
    with pytest.raises(EngineUnavailable, match="repeating is safe"):
        greet.enqueue()
    app.close()


def test_the_shared_server_is_reached_by_a_url_alone(store_url):
    assert dynamo_servers.shared_dynamodb() in store_url
    app = Treadle(store_url)
    assert sum(app.count().values()) == app.count()[State.PENDING] == 0
    app.close()


# --------------------------------------------------------------------------------- without asking botocore


REGIONS = [
    "us-east-1", "us-west-2", "eu-central-1", "eu-south-2", "ap-southeast-7", "sa-east-1", "ca-west-1", "me-central-1",
    "af-south-1", "il-central-1", "mx-central-1", "us-gov-east-1", "cn-northwest-1", "us-iso-east-1", "us-isob-east-1",
    "eu-isoe-west-1", "us-isof-south-1", "eusc-de-east-1", "local", "xx-new-1",
]  # fmt: skip


@pytest.mark.parametrize("region", REGIONS)
def test_the_address_of_a_region_is_the_one_that_botocore_says(monkeypatch, region):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA1")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    said = botocore.session.Session().create_client("dynamodb", region_name=region).meta.endpoint_url
    assert access.find_access(region, None).url == said


@pytest.mark.parametrize(
    ("settings", "config"),
    [
        ({"AWS_ENDPOINT_URL": "http://localhost:4566"}, ""),
        ({"AWS_ENDPOINT_URL_DYNAMODB": "http://localhost:8000"}, ""),
        ({"AWS_USE_FIPS_ENDPOINT": "true"}, ""),
        ({"AWS_USE_DUALSTACK_ENDPOINT": "true"}, ""),
        ({}, "[default]\nendpoint_url = http://localhost:4566\n"),
        ({}, "[default]\nuse_fips_endpoint = true\n"),
        ({"AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"}, "[default]\nendpoint_url = http://localhost:4566\n"),
        ({}, "[default]\nregion = eu-north-1\n"),
    ],
)
def test_an_address_that_is_configured_elsewhere_is_honoured(monkeypatch, tmp_path, settings, config):
    settings = {"AWS_ACCESS_KEY_ID": "AKIA1", "AWS_SECRET_ACCESS_KEY": SECRET, **settings}
    (tmp_path / "config").write_text(config)
    for name, value in {**settings, "AWS_CONFIG_FILE": str(tmp_path / "config")}.items():
        monkeypatch.setenv(name, value)
    said = botocore.session.Session().create_client("dynamodb", region_name="eu-central-1").meta.endpoint_url
    assert access.find_access("eu-central-1", None).url == said


def test_credentials_that_expire_are_refreshed(open_engine, listener, monkeypatch):
    """Whoever signs asks for the credentials of the moment, and botocore fetches new ones in time."""
    fetched = iter(range(1, 100))

    def fetch():
        soon = datetime.now(UTC) + timedelta(seconds=30)  # so near that each use fetches again
        number = next(fetched)
        return {"access_key": f"AKIA{number}", "secret_key": SECRET, "token": "t", "expiry_time": soon.isoformat()}

    credentials = RefreshableCredentials.create_from_metadata(fetch(), fetch, "test")
    engine = open_engine(f"dynamodb://jobs?endpoint={listener.url}&region=eu-west-1")
    asked(engine)
    monkeypatch.setattr(engine.client, "_credentials", credentials)
    used = set()
    for _ in range(2):
        asked(engine)
        used.add(listener.signed_with[0])
    assert used == {"AKIA2", "AKIA3"}


def test_an_engine_with_credentials_in_the_environment_does_not_load_botocore():
    code = (
        "import os, sys, time\n"
        "os.environ |= {'AWS_ACCESS_KEY_ID': 'AKIA1', 'AWS_SECRET_ACCESS_KEY': 's', 'AWS_REGION': 'eu-west-1'}\n"
        "from treadle.engines import connect\n"
        "def build():\n"
        "    engine = connect('dynamodb://jobs')\n"
        "    engine.client._connect()\n"
        "    engine.close()\n"
        "build()\n"
        "before = time.process_time()\n"
        "for _ in range(20): build()\n"
        "print('botocore' in sys.modules, (time.process_time() - before) / 20 * 1000)\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout
    loaded, milliseconds = said.split()
    assert loaded == "False"
    assert float(milliseconds) <= 2.0
