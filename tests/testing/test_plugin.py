"""The pytest plugin, as somebody meets it who has treadle installed: each test is a project that pytest runs."""

import os
import re
import sys
from collections.abc import Iterator

import psycopg
import pytest

from tests.support import forks, provision
from tests.support.processes import ROOT
from treadle import ConfigError
from treadle.testing.named_app import named_app
from treadle.testing.schemas import own_schema

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.slow

JOBS = """
from treadle import Context, Treadle

app = Treadle("sqlite:///production.db")
acme = app.tenant("acme")

@app.task
def send(to: str) -> str:
    return f"sent to {to}"

@app.task
async def asend(to: str) -> str:
    return f"sent to {to}"

@app.task(cron="0 6 * * *")
def report() -> str:
    return "reported"
"""
INI = """
[pytest]
pythonpath = .
treadle_app = jobs:app
"""
SLOW_TO_LOAD = ("cacheprovider", "faker", "hypothesispytest", "schemathesis")
NOT_ASKED = tuple(f"-pno:{plugin}" for plugin in SLOW_TO_LOAD)


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """A project that names its app and nothing else."""
    pytester.makepyfile(jobs=JOBS)
    pytester.makeini(INI)
    return pytester


def run_pytest(project: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    """What pytester's runpytest_subprocess does, in a process that is forked."""
    command = [sys.executable, "-m", "pytest", f"--basetemp={project.path / 'tmp'}", *NOT_ASKED, *arguments]
    done = forks.run(command, cwd=project.path)
    return pytest.RunResult(done.returncode, done.stdout.splitlines(), done.stderr.splitlines(), 0.0)


def passed(project: pytest.Pytester, *arguments: str, **outcomes: int) -> pytest.RunResult:
    """Run pytest, as its user does; how many tests ended how."""
    done = run_pytest(project, *arguments)
    check_outcomes(done, **outcomes)
    return done


def check_outcomes(done: pytest.RunResult, **outcomes: int) -> None:
    found = {name: number for name, number in done.parseoutcomes().items() if name not in ("warnings", "warning")}
    assert found == outcomes, done.stdout.str() + done.stderr.str()


def test_the_app_of_the_ini_is_run_in_memory_with_a_clock_that_stands(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_shop="""
        from jobs import acme, app, asend, send
        from treadle.testing import assert_enqueued, assert_not_enqueued

        def test_jobs(treadle_app, treadle_clock, treadle_run, treadle_url):
            assert treadle_app is app and treadle_url == app.settings.url == "sqlite:///:memory:"
            job = send.using(run_after="1h").enqueue("ada")
            assert assert_enqueued(app, send, payload={"to": "ada"}).id == job.id
            assert treadle_run() == []
            treadle_clock.advance(hours=1)
            acme.using(asend).enqueue("bob")
            assert [job.result for job in treadle_run()] == ["sent to ada", "sent to bob"]
            assert [job.task for job in acme.find().jobs] == ["asend"]

        def test_each_has_a_store_and_a_clock_of_its_own(treadle_app, treadle_clock):
            assert app.find().jobs == []
            assert treadle_clock.now().hour == 12

        def test_schedules(treadle_clock, treadle_run):
            assert treadle_run() == []
            treadle_clock.advance(days=1)
            assert [job.result for job in treadle_run(queues=["default"])] == ["reported"]
        """
    )
    passed(project, passed=3)
    assert not (project.path / "production.db").exists()


def test_a_test_that_asks_for_nothing_does_not_reach_the_real_store_either(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_shop="""
        import unittest
        from jobs import app, send

        def test_plain():
            send.enqueue("ada")
            assert len(app.find().jobs) == 1

        class TestOldStyle(unittest.TestCase):
            def test_of_unittest(self):
                send.enqueue("ada")
                self.assertEqual(len(app.find().jobs), 1)
        """
    )
    passed(project, passed=2)
    assert not (project.path / "production.db").exists()


def test_the_page_of_the_documentation_is_a_project_that_passes(pytester: pytest.Pytester) -> None:
    page = (ROOT / "docs" / "testing.md").read_text("utf-8")
    files = re.findall(r"^```python\n# file: (\S+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert [name for name, _ in files] == ["shop.py", "test_orders.py", "conftest.py"]
    for name, text in files:
        (pytester.path / name).write_text(text)
    ini = re.findall(r"^```toml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[0]
    pytester.makepyprojecttoml(f'{ini}pythonpath = "."\n')
    passed(pytester, passed=1)


def test_a_failure_shows_what_is_pending_and_none_of_our_own_lines(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_shop="""
        from jobs import app, send
        from treadle.testing import assert_enqueued, assert_not_enqueued

        def test_missing():
            send.enqueue("ada")
            assert_enqueued(app, "send", payload={"to": "bob"})

        def test_there():
            send.enqueue("ada")
            assert_not_enqueued(app, send)
        """
    )
    text = passed(project, failed=2).stdout.str()
    assert "payload['to'] is 'ada', not 'bob'" in text
    assert "1 pending job of task 'send' should not be there:" in text
    assert "_differences" not in text
    assert "def assert_enqueued" not in text


def test_a_project_that_does_not_use_it_pays_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_what_is_loaded(request):
            assert request.config.pluginmanager.hasplugin("treadle")
            loaded = [name for name in sys.modules if name.partition(".")[0] == "treadle"]
            assert sorted(loaded) == ["treadle", "treadle.testing", "treadle.testing.plugin"]
            assert not {"pydantic", "sqlite3", "psycopg"} & set(sys.modules)
            assert not [name for name in request.fixturenames if "treadle" in name]
        """
    )
    check_outcomes(pytester.runpytest_subprocess(*NOT_ASKED), passed=1)  # started, and not forked: what is loaded?


def test_a_project_without_the_ini_gives_the_fixture_itself(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(jobs=JOBS)
    pytester.makeconftest(
        """
        import pytest
        from jobs import app

        @pytest.fixture
        def treadle_app(treadle_url, treadle_clock):
            with app.override(treadle_url, clock=treadle_clock):
                yield app
        """
    )
    pytester.makepyfile(
        test_shop="""
        from jobs import send

        def test_it(treadle_run):
            send.enqueue("ada")
            assert [job.result for job in treadle_run()] == ["sent to ada"]
        """
    )
    passed(pytester, passed=1)
    assert not (pytester.path / "production.db").exists()


def test_another_store_is_a_fixture_of_your_own(project: pytest.Pytester) -> None:
    project.makeconftest(
        """
        import pytest

        @pytest.fixture
        def treadle_url(tmp_path):
            return f"sqlite:///{tmp_path}/jobs.db"
        """
    )
    project.makepyfile(
        test_shop="""
        import sqlite3
        from jobs import app, send

        def test_a_job_in_my_own_transaction(tmp_path, treadle_run):
            app.open()
            with sqlite3.connect(tmp_path / "jobs.db") as connection:
                send.using(tx=connection).enqueue("ada")
            assert len(treadle_run()) == 1
        """
    )
    passed(project, passed=1)


@pytest.mark.parametrize(
    ("ini", "message"),
    [
        ("", "*treadle_app: which app? Write treadle_app = *"),
        ("treadle_app = broken:app", "*ZeroDivisionError*"),  # with the lines of the module that broke
        ("treadle_app = jobs:app\ntreadle_url = sqlite:///x.db", "*treadle_url: 'sqlite:///x.db' must be a Postgre*"),
    ],
    ids=["no app", "a broken module", "a file for all tests"],
)
def test_what_is_wrong_in_the_ini_is_named(project: pytest.Pytester, ini: str, message: str) -> None:
    project.makeini(f"[pytest]\npythonpath = .\n{ini}\n")
    project.makepyfile(broken="1 / 0")
    project.makepyfile(test_shop="def test_it(treadle_app): pass")
    passed(project, errors=1).stdout.fnmatch_lines([message])


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "which app"),
        ("jobs", "'jobs' must be module:name, for example shop.jobs:app"),
        ("jobs.py:app:x", "must be module:name"),
        ("tests.nope.jobs:app", r"there is no module 'tests.nope' .from tests.nope.jobs:app.*pythonpath"),
        ("tests.testing:app", "module tests.testing has no 'app'; it has no Treadle at all"),
        ("tests.testing.test_plugin:passed", "passed is of type function, not a Treadle"),
    ],
)
def test_an_app_that_is_not_there_is_named(spec: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"treadle_app: .*{message}" if spec else message):
        named_app(spec)


def test_a_url_that_tests_cannot_share_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for left_out in ("", " ", "sqlite:///:memory:"):
        assert own_schema(left_out) is None
    with pytest.raises(ConfigError, match=r"treadle_url: .*dynamodb://jobs.* write a fixture treadle_url"):
        own_schema("dynamodb://jobs")
    with pytest.raises(ConfigError, match="the environment variable NOT_THERE is not set"):
        own_schema("${NOT_THERE}")
    monkeypatch.setenv("THERE", "postgresql+asyncpg://me:a%20b@host/db?schema=treadle&sslmode=require&prepare=off")
    schema = own_schema("$THERE")
    assert re.fullmatch(
        r"postgresql://me:a%20b@host/db\?sslmode=require&schema=treadle_test_\w{12}&prepare=off", schema.url
    )


def test_it_works_beside_pytest_xdist(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_shop="""
        import pytest
        from jobs import app, send

        @pytest.mark.parametrize("n", range(6))
        def test_it(n, treadle_run):
            send.enqueue(str(n))
            assert [job.payload["to"] for job in treadle_run()] == [str(n)]
        """
    )
    passed(project, "-n", "2", passed=6)


ASYNC_TESTS = """
import asyncio
import pytest
from jobs import app, asend, send

loops = []

@app.task
async def note() -> None:
    loops.append(asyncio.get_running_loop())

{mark}
async def test_handlers_run_on_the_loop_of_the_test(treadle_arun, treadle_clock):
    await asend.using(run_after="1h").aenqueue("ada")
    await note.aenqueue()
    assert [job.task for job in await treadle_arun()] == ["note"]
    assert loops == [asyncio.get_running_loop()]
    treadle_clock.advance(hours=1)
    assert [job.result for job in await treadle_arun()] == ["sent to ada"]

{mark}
async def test_the_next_has_a_store_of_its_own():
    assert (await app.afind()).jobs == []
"""


def test_it_works_beside_pytest_asyncio(project: pytest.Pytester) -> None:
    project.makeini(f"{INI}asyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n")
    project.makepyfile(test_shop=ASYNC_TESTS.format(mark=""))
    passed(project, passed=2)


def test_it_works_beside_anyio(project: pytest.Pytester) -> None:
    project.makeconftest("import pytest\n\n@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n")
    project.makepyfile(test_shop=ASYNC_TESTS.format(mark="@pytest.mark.anyio"))
    passed(project, "-p", "no:asyncio", passed=2)


# -------------------------------------------------------------------------------------------- PostgreSQL


@pytest.fixture
def database(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A database of the project, with the schema of its real jobs, named by an environment variable."""
    url = provision.fresh_database(provision.shared_postgres())
    monkeypatch.setenv("TEST_DATABASE_URL", url)
    project.makeini(f"{INI}treadle_url = $TEST_DATABASE_URL\n")
    yield url
    provision.drop_database(url)


def schemas(url: str) -> list[str]:
    with psycopg.connect(url) as connection:
        found = connection.execute("select nspname from pg_namespace where nspname like 'treadle%' order by 1")
        return [name for (name,) in found]


ON_POSTGRES = """
import os
import re
import sys
import psycopg
import pytest
from jobs import acme, app, send

@pytest.mark.parametrize("n", range(4))
def test_it(n, treadle_run, treadle_url, treadle_clock):
    assert re.search(r"schema=treadle_test_\\w{12}$", treadle_url)
    assert app.find().jobs == [] and app.schedules.list() == []
    send.using(run_after="1h").enqueue("later")
    acme.using(send).enqueue(str(n))
    with psycopg.connect(os.environ["TEST_DATABASE_URL"]) as connection:
        send.using(tx=connection).enqueue("in my transaction")
    assert [job.payload["to"] for job in treadle_run()] == [str(n), "in my transaction"]
    treadle_clock.advance(hours=1)
    assert len(treadle_run()) == 1

def test_one_that_opens_nothing():
    pass
"""


@pytest.mark.server
@pytest.mark.parametrize("arguments", [(), ("-n", "2")], ids=["alone", "beside xdist"])
def test_on_postgresql_each_process_has_a_schema_that_is_gone_afterwards(
    project: pytest.Pytester, database: str, arguments: tuple[str, ...]
) -> None:
    project.makepyfile(test_shop=ON_POSTGRES)
    passed(project, *arguments, passed=5)
    assert schemas(database) == []


@pytest.mark.server
def test_the_schema_of_the_real_jobs_is_never_touched(project: pytest.Pytester, database: str) -> None:
    project.makeini(f"{INI}treadle_url = {database.replace('postgresql:', 'postgresql+psycopg:')}?schema=treadle\n")
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "create schema treadle; create table treadle.jobs (id int); insert into treadle.jobs select 1"
        )
        project.makepyfile(test_shop=ON_POSTGRES)
        passed(project, passed=5)
        assert connection.execute("select id from treadle.jobs").fetchall() == [(1,)]
    assert schemas(database) == ["treadle"]


@pytest.mark.server
def test_a_transaction_that_a_test_leaves_open_does_not_stop_the_next(
    project: pytest.Pytester, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.makepyfile(
        test_shop="""
        import os
        import psycopg
        import treadle.testing.schemas
        from jobs import app, send

        treadle.testing.schemas.LOCK_TIMEOUT = "100ms"
        left = []
        seen = set()

        def test_that_forgets(treadle_url):
            seen.add(treadle_url)
            app.open()
            left.append(psycopg.connect(os.environ["TEST_DATABASE_URL"]))
            send.using(tx=left[0]).enqueue("ada")
            send.enqueue("bob")

        def test_that_comes_next(treadle_url):
            assert treadle_url not in seen
            assert app.find().jobs == []
        """
    )
    done = passed(project, passed=2)
    [name] = schemas(database)  # which our user is told of
    done.stdout.fnmatch_lines([f"*schema {name} is still in use*"])


@pytest.mark.server
def test_a_server_that_is_away_is_an_error_with_its_name(project: pytest.Pytester, database: str) -> None:
    project.makeini(f"{INI}treadle_url = postgresql://nobody@127.0.0.1:1/nothing?connect_timeout=1\n")
    project.makepyfile(test_shop="from jobs import send\n\ndef test_it():\n    send.enqueue('ada')\n")
    assert "TREADLE_URL" not in os.environ
    done = run_pytest(project)
    done.stdout.fnmatch_lines(["*EngineUnavailable*127.0.0.1*"])
