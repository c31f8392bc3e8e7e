"""Files and disks that fail: the error names the file and the way out, and nothing is half written."""

import os
import random
import resource
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from making import a_job, claim, current, enqueued, settle
from treadle.engines import connect
from treadle.engines.contract import Engine
from treadle.engines.values import Claim, JobFilter, Ruling
from treadle.errors import EngineError, EngineUnavailable
from treadle.model import State
from treadle.model.lifecycle import Succeeded
from treadle.testing import FakeClock

PAGE = 4096

USES: dict[str, Callable[[Engine], object]] = {
    "enqueue": enqueued,
    "turn": lambda engine: engine.turn([], Claim("token", "w1", 10, 30.0)),
    "get": lambda engine: engine.get(["none"]),
    "find": lambda engine: engine.find(JobFilter(), limit=1000),
    "migrate": lambda engine: engine.migrate(),
}
any_use = pytest.mark.parametrize("use", USES.values(), ids=USES)


# ------------------------------------------------------------------------------------ not a file of ours


@any_use
@pytest.mark.parametrize("text", ["hello\n", "a shopping list, by no means a database\n" * 200], ids=["short", "long"])
def test_a_file_that_is_no_database_is_refused_and_left_alone(
    engine: Engine, path: Path, text: str, use: Callable[[Engine], object]
) -> None:
    path.write_text(text)
    assert_refused(path, "not an SQLite database: choose another file", use, engine)
    assert path.read_text() == text
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_check_of_a_file_that_is_no_database_is_refused_too(engine: Engine, path: Path) -> None:
    path.write_text("a shopping list\n" * 500)
    assert_refused(path, "not an SQLite database", lambda engine: engine.check(), engine)


@any_use
def test_a_directory_is_no_file(engine: Engine, path: Path, use: Callable[[Engine], object]) -> None:
    path.mkdir()
    assert_refused(path, "cannot be opened", use, engine)


@any_use
def test_a_file_in_a_missing_directory_asks_for_the_directory(
    clock: FakeClock, tmp_path: Path, use: Callable[[Engine], object]
) -> None:
    engine = connect(f"sqlite:///{tmp_path}/missing/treadle.db", clock=clock.now)
    assert_refused(tmp_path / "missing/treadle.db", "cannot be opened: does its directory exist", use, engine)
    (tmp_path / "missing").mkdir()
    use(engine)
    engine.close()


def test_check_of_a_directory_does_not_promise_that_migrate_will_help(engine: Engine, path: Path) -> None:
    path.mkdir()
    try:
        found = engine.check()
    except EngineError as error:
        found = [str(error)]
    assert found
    assert not [line for line in found if "does not exist yet" in line]


# ------------------------------------------------------------------------------------------ not writable


@pytest.fixture
def shelf() -> Iterator[Path]:
    """A directory that an ordinary user can reach, unlike tmp_path of root."""
    directory = Path(tempfile.mkdtemp(prefix="treadle-"))
    directory.chmod(0o755)
    yield directory
    directory.chmod(0o755)
    shutil.rmtree(directory)


@pytest.mark.parametrize("mode", [0o555, 0o755], ids=["directory", "file"])
def test_a_read_only_file_or_directory_says_what_to_make_writable(shelf: Path, mode: int, clock: FakeClock) -> None:
    path = shelf / "treadle.db"
    engine = connect(f"sqlite:///{path}", clock=clock.now)
    enqueued(engine)
    engine.close()
    path.chmod(0o444)
    shelf.chmod(mode)
    with an_ordinary_user():
        assert_refused(path, "make the file and its directory writable", enqueued, engine)
        assert [line.text for line in engine.doctor() if line.level == "error" and "cannot write to" in line.text]
        engine.close()
    shelf.chmod(0o755)
    for each in shelf.iterdir():  # SQLite's own files beside it are born as read-only as the file was
        each.chmod(0o644)
    assert enqueued(engine).state is State.PENDING
    assert engine.count(JobFilter()) == {State.PENDING: 2}
    engine.close()


def test_a_new_file_in_a_read_only_directory_says_so(shelf: Path, clock: FakeClock) -> None:
    shelf.chmod(0o555)
    engine = connect(f"sqlite:///{shelf}/treadle.db", clock=clock.now)
    with an_ordinary_user():
        assert_refused(shelf / "treadle.db", "may you write there", enqueued, engine)
    shelf.chmod(0o755)
    assert enqueued(engine).state is State.PENDING
    engine.close()


# ---------------------------------------------------------------------------------------------- damaged


@any_use
def test_a_damaged_file_is_no_store_and_says_what_to_do(
    make_engine: Callable[[], Engine], path: Path, use: Callable[[Engine], object]
) -> None:
    fill_and_close(make_engine())
    overwrite(path, first_page=2)
    assert_refused(path, "is damaged: .*integrity_check.*restore", use, make_engine())


def test_damage_in_the_middle_is_found_by_who_reads_there(make_engine: Callable[[], Engine], path: Path) -> None:
    fill_and_close(make_engine())
    pages = path.stat().st_size // PAGE
    overwrite(path, first_page=pages // 3, last_page=2 * pages // 3)
    engine = make_engine()
    assert_refused(path, "is damaged", lambda engine: engine.find(JobFilter(), limit=1000), engine)
    assert_refused(path, "is damaged", lambda engine: claim(engine, 1000), engine)


# -------------------------------------------------------------------------------------------- disk full


@pytest.fixture(params=["a full disk", "a file at its limit"])
def cramped(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator["Disk"]:
    """A directory that can run out of space and have it back: a small disk of its own, or a limit on file sizes."""
    if request.param == "a file at its limit":
        yield Limited(tmp_path)
        return
    directory = tmp_path / "disk"
    directory.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(directory)], check=False, capture_output=True
    )
    if mounted.returncode:  # only root may mount: then the limit on file sizes stands for the disk too
        yield Limited(tmp_path)
        return
    yield Full(directory)
    subprocess.run(["umount", "--lazy", str(directory)], check=True)


class Disk:
    """Room for treadle's file and little else, when it has run out; `said` is how the engine tells of it."""

    said: str

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / "treadle.db"

    def run_out(self, *, leave: int = 256 * 1024) -> None:
        """Leave only so many bytes."""
        raise NotImplementedError

    def recover(self) -> None:
        raise NotImplementedError


class Full(Disk):
    said = "is full: nothing was written; free some space"

    def run_out(self, *, leave: int = 256 * 1024) -> None:
        free = shutil.disk_usage(self.directory).free
        (self.directory / "ballast").write_bytes(bytes(free - leave))

    def recover(self) -> None:
        (self.directory / "ballast").unlink()


class Limited(Disk):
    said = "failed .*check the disk"

    def run_out(self, *, leave: int = 256 * 1024) -> None:
        largest = max((each.stat().st_size for each in self.directory.iterdir()), default=0)
        self._before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest + leave, self._before[1]))

    def recover(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self._before)


@pytest.mark.parametrize("megabytes", [2, 40], ids=["at the commit", "before the commit"])  # the cache holds 32
def test_a_big_enqueue_that_runs_out_of_space_writes_nothing_and_works_once_there_is_room(
    cramped: Disk, clock: FakeClock, megabytes: int
) -> None:
    engine = connect(f"sqlite:///{cramped.path}", clock=clock.now)
    enqueued(engine)
    batch = [
        a_job(clock.now(), payload_json=f'"{"x" * 1_000_000}"', key=f"k{n}", key_scope="ever") for n in range(megabytes)
    ]
    cramped.run_out()
    try:
        with pytest.raises(EngineUnavailable, match=cramped.said) as told:
            engine.enqueue(batch)
        assert engine.count(JobFilter()) == {State.PENDING: 1}
    finally:
        cramped.recover()
    assert str(cramped.path) in str(told.value)
    assert isinstance(told.value.__cause__, sqlite3.OperationalError)
    assert sound(cramped.path)
    assert all(receipt.created for receipt in engine.enqueue(batch))
    assert engine.count(JobFilter()) == {State.PENDING: 1 + megabytes}
    assert sound(cramped.path)
    engine.close()


def test_a_settle_that_runs_out_of_space_leaves_the_job_running_and_can_be_repeated(
    cramped: Disk, clock: FakeClock
) -> None:
    engine = connect(f"sqlite:///{cramped.path}", clock=clock.now)
    enqueued(engine)
    [job] = claim(engine)
    done = Succeeded(f'"{"x" * 1_000_000}"')
    cramped.run_out()
    try:
        with pytest.raises(EngineUnavailable, match=cramped.said):
            settle(engine, job, done)
        assert current(engine, job) == job
    finally:
        cramped.recover()
    assert settle(engine, job, done).ruling is Ruling.APPLIED
    engine.close()


def test_a_file_begun_on_a_full_disk_is_made_once_there_is_room(cramped: Disk, clock: FakeClock) -> None:
    engine = connect(f"sqlite:///{cramped.path}", clock=clock.now)
    cramped.run_out(leave=PAGE)
    try:
        with pytest.raises(EngineUnavailable, match=cramped.said):
            enqueued(engine)
    finally:
        cramped.recover()
    assert enqueued(engine).state is State.PENDING
    assert engine.check() == []
    engine.close()


# ---------------------------------------------------------------------------------------------- helpers


def assert_refused(path: Path, said: str, use: Callable[[Engine], object], engine: Engine) -> None:
    """An EngineError that names the file and the way out, keeps its cause, and does not invite to repeat."""
    with pytest.raises(EngineError, match=said) as told:
        use(engine)
    assert str(path) in str(told.value)
    assert not isinstance(told.value, EngineUnavailable)
    assert isinstance(told.value.__cause__, sqlite3.DatabaseError)


@contextmanager
def an_ordinary_user() -> Iterator[None]:
    """Root may write anywhere: be nobody for a while. Whoever is not root stays who he is."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def fill_and_close(engine: Engine) -> None:
    engine.enqueue([a_job(engine.now(), payload_json=f'"{"x" * 2000}"') for _ in range(300)])
    engine.close()


def overwrite(path: Path, *, first_page: int, last_page: int | None = None) -> None:
    """Noise over these pages; the first page of a file is number 1."""
    last_page = last_page or path.stat().st_size // PAGE
    with path.open("r+b") as file:
        file.seek((first_page - 1) * PAGE)
        file.write(random.Random(7).randbytes((last_page - first_page + 1) * PAGE))


def sound(path: Path) -> bool:
    connection = sqlite3.connect(path)
    answer = connection.execute("pragma integrity_check").fetchall()
    connection.close()
    return answer == [("ok",)]
