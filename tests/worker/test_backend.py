"""The scheduler of the backend (002) by its profile, on PostgreSQL: how often it looks, and what it needs."""

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest

from tests.support import processes
from treadle import Treadle
from treadle.profiles import backend
from treadle.schedules import firing
from treadle.testing import FakeClock


@pytest.fixture(params=["postgres"])
def engine_kind(request: pytest.FixtureRequest) -> str:
    """Only this engine: the backend has no other."""
    return request.param


@pytest.mark.covers("002-C1.b")
@pytest.mark.parametrize(
    ("settings", "tick"), [({}, 15), ({"schedule_interval": 4}, 4)], ids=["as it is", "configured"]
)
def test_the_scheduler_looks_for_due_schedules_once_a_tick(
    make_app: Callable[..., Treadle], monkeypatch: pytest.MonkeyPatch, settings: dict[str, int], tick: int
) -> None:
    """By a clock that moves when told: a schedule of another process, made since the last look, waits for the next."""
    clock, seconds = FakeClock(), [1000.0]
    app, other = (make_app(profile=backend.PROFILE, clock=clock, **settings) for _ in range(2))
    monkeypatch.setattr(firing, "time", SimpleNamespace(monotonic=lambda: seconds[0]))
    app.register("prune", lambda: None)
    scheduler, due, looks = app.worker()._maintenance._scheduler, app.engine.due, []
    monkeypatch.setattr(app.engine, "due", lambda **named: looks.append(named) or due(**named))

    def later(by: float) -> int:
        clock.advance(seconds=by)
        seconds[0] += by
        scheduler.run_due()
        return len(looks)

    assert later(0) == 1
    other.register("prune", lambda: None)
    other.schedules.create("often", "prune", every="1s")
    assert later(tick - 0.5) == 1
    assert sum(app.count().values()) == 0
    assert later(0.5) == 2
    assert {job.schedule for job in app.find().jobs} == {"often"}
    assert other.schedules.get("often").next_at == clock.now() + timedelta(seconds=1)


ALONE = """
import json, os, re, socket, sys

def no_network(*_):
    raise AssertionError("nothing but the database may be contacted")

socket.socket.connect = socket.socket.connect_ex = socket.socket.sendto = no_network
from treadle.profiles import backend
from treadle import Treadle

app = Treadle(sys.argv[1], profile=backend.PROFILE, schedule_interval=0.1)
peers = set()

def look():
    inodes = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            inodes.update(re.findall(r"^socket:.(\\d+).$", os.readlink(f"/proc/self/fd/{name}")))
        except FileNotFoundError:
            pass
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in open(f"/proc/self/net/{table}").read().splitlines()[1:]:
            fields = line.split()
            if fields[9] in inodes:
                peers.add(int(fields[2].rpartition(":")[2], 16))

@app.task(every="1s")
def stale_session_cleanup() -> None:
    look()
    worker.stop()

worker = app.worker(poll=0.05)
worker.run()
look()
[job, *_] = app.find(state="completed").jobs
brokers = {"redis", "pika", "kombu", "amqp", "celery", "kafka", "boto3", "botocore", "apscheduler"}
print(json.dumps([job.task, job.schedule, sorted(peers), sorted(brokers & set(sys.modules))]))
"""


@pytest.mark.covers("002-D1.a")
def test_queue_and_scheduler_need_the_database_and_nothing_else(store_url: str) -> None:
    """A process that makes a job of a schedule and runs it has connections to its database alone, and no broker."""
    done = subprocess.run(
        [sys.executable, "-c", ALONE, store_url], cwd=processes.ROOT, env=processes.environment(),
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    name = "stale_session_cleanup"
    assert json.loads(done.stdout) == [name, name, [urlsplit(store_url).port], []]
