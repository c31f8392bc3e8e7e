"""Rows of the seeds that no other page of tests has as its subject."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import forks
from tests.support.marks import any_store
from treadle import Retry, State, Treadle
from treadle.testing import FakeClock, run_until_idle

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCE = ROOT / "src" / "treadle"


@pytest.mark.covers("000-R21.a")
def test_every_state_change_is_decided_in_lifecycle_and_nowhere_else() -> None:
    deciders = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                moves = name in ("evolve", "_replace") and any(word.arg == "state" for word in node.keywords)
                moves = moves and "where." not in ast.unparse(node.func)  # a filter is no job
                if name == "Change" or moves:
                    deciders.add(path.relative_to(SOURCE).as_posix())
    assert deciders == {"model/lifecycle.py"}


def test_a_job_runs_with_the_database_and_nothing_else(tmp_path: Path) -> None:
    program = """
import json, socket, sys

def no_network(*_):
    raise AssertionError("nothing may be contacted")

socket.socket.connect = no_network
from treadle import Treadle
app = Treadle("sqlite:///only.db")

@app.task
def greet(name: str) -> str:
    return name

job = greet.enqueue("Ada")
app.run_worker(until_idle=True, poll=0.05)
brokers = {"redis", "pika", "kombu", "amqp", "celery", "kafka", "boto3"}
print(json.dumps([app.get(job.id).state, sorted(brokers & set(sys.modules))]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert json.loads(done.stdout) == ["succeeded", []]


@any_store
@pytest.mark.covers("004-T13.a")
def test_a_scheduler_process_of_the_application_makes_jobs_that_a_worker_elsewhere_runs(store_url: str) -> None:
    scheduler = (
        "import sys\nfrom treadle import Treadle\napp = Treadle(sys.argv[1])\n"
        "@app.task\ndef workflow(name: str) -> str: ...\n"
        "for name in ('hourly', 'nightly'):\n    workflow.enqueue(name)\n"
    )
    assert forks.run([sys.executable, "-c", scheduler, store_url]).returncode == 0

    app = Treadle(store_url)

    @app.task
    def workflow(name: str) -> str:
        return name

    app.run_worker(until_idle=True, poll=0.05)
    assert sorted(job.result for job in app.find(state=State.SUCCEEDED).jobs) == ["hourly", "nightly"]
    app.close()


@pytest.mark.covers("002-D1.b")
def test_the_decision_for_the_database_is_on_record_with_its_reason_and_cost() -> None:
    [record] = (ROOT / "docs" / "decisions").glob("0001-*.md")
    text = " ".join(record.read_text("utf-8").split())
    assert "No Redis" in text
    assert all(word in text for word in ("RabbitMQ", "Wanted", "Chosen", "Costs"))


def test_enqueueing_from_the_command_line_can_be_closed(tmp_path: Path) -> None:
    (tmp_path / "closed.py").write_text(
        "from treadle import Treadle\n"
        "app = Treadle('sqlite:///closed.db', enqueue_allow=[])\n"
        "@app.task\ndef greet() -> None: ...\n"
    )
    command = [sys.executable, "-m", "treadle", "enqueue", "greet", "{}", "--app", "closed:app"]
    done = forks.run(command, cwd=tmp_path)
    assert done.returncode == 1
    assert "enqueue_allow" in done.stderr
    assert Treadle(f"sqlite:///{tmp_path}/closed.db").count()[State.PENDING] == 0


@any_store
def test_a_task_has_three_attempts_if_it_says_so_and_a_job_may_have_its_own_number(store_url: str) -> None:
    app = Treadle(store_url, clock=FakeClock())
    runs = []

    @app.task(retry=Retry(max_attempts=3, base=0, jitter=0))
    def sync(user: str) -> None:
        runs.append(user)
        raise RuntimeError("no")

    three = sync.enqueue("three")
    one = sync.using(retry=Retry(max_attempts=1)).enqueue("one")
    run_until_idle(app)

    assert (runs.count("three"), runs.count("one")) == (3, 1)
    assert app.get(three.id).state is app.get(one.id).state is State.FAILED
    app.close()
