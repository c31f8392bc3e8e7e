"""What is published: the files of wheel and sdist, their metadata, and the README tried from a wheel."""

import os
import re
import shlex
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Mapping
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest
from trove_classifiers import classifiers

import dev
import hatch_build
from tests.docs.test_docs_run import BLOCK, FILE, links

ROOT = dev.ROOT
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
TEST_GROUP = {re.split(r"[\[>]", line)[0] for line in PROJECT["dependency-groups"]["test"]}
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
LINK_TARGET = re.compile(r"\]\(([^)]*)\)")


def built(project: Path, into: Path, *arguments: str) -> Path:
    command = (sys.executable, "-m", "hatchling", "build", "-d", str(into), *arguments)
    subprocess.run(command, cwd=project, check=True, capture_output=True)
    [product] = into.iterdir()
    return product


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(ROOT, tmp_path_factory.mktemp("sdist"), "-t", "sdist")


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the sdist, as those do who package treadle for a distribution."""
    place = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as packed:
        packed.extractall(place, filter="data")
    [unpacked] = place.iterdir()
    return built(unpacked, tmp_path_factory.mktemp("wheel"), "-t", "wheel")


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as packed:
        [name] = [name for name in packed.namelist() if name.endswith("/METADATA")]
        return message_from_bytes(packed.read(name))


@pytest.mark.slow
def test_the_sdist_holds_what_the_readme_and_the_contributor_need(sdist: Path) -> None:
    with tarfile.open(sdist) as packed:
        held = {name.partition("/")[2] for name in packed.getnames()}
    readme_and_its_links = {"README.md", *(target for target, _ in links(ROOT / "README.md") if target)}
    needed = {"CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "Makefile", "dev.py", "requirements.lock", "hatch_build.py"}
    assert (readme_and_its_links | needed) - held == set()
    assert [name for name in held if name.endswith((".pyc", ".db")) or "/." in name] == []


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        held = set(packed.namelist())
    source = ROOT / "src"
    ours = {str(path.relative_to(source)) for path in source.rglob("*") if path.suffix in (".py", ".sql", ".typed")}
    assert ours - held == set()
    assert {name.partition("/")[0].partition("-")[0] for name in held} == {"treadle"}
    assert "treadle/demo/story.py" in held  # `treadle demo` is how one tries it after an install


@pytest.mark.slow
def test_what_only_our_tests_need_is_not_published(metadata: Message) -> None:
    extras = metadata.get_all("Provides-Extra", [])
    assert "test" not in extras
    unconditional = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    names = {re.split(r"[\[>]", line)[0] for line in unconditional}
    assert names & (TEST_GROUP - {"psycopg"}) == set()


def test_the_lock_pins_the_group_of_the_tests() -> None:
    pinned = set(re.findall(r"^([\w.-]+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    assert TEST_GROUP - pinned == set()


@pytest.mark.slow
def test_the_metadata_speaks_of_what_people_search_for(metadata: Message) -> None:
    told = f"{metadata['Summary']} {metadata['Keywords']}".lower()
    for word in ("scheduler", "cron", "postgresql", "dynamodb", "sqlite", "job queue", "task queue", "asyncio"):
        assert word in told
    assert len(metadata["Summary"]) <= 120
    assert set(metadata.get_all("Classifier", [])) <= classifiers


@pytest.mark.slow
def test_no_link_of_the_description_is_dead_on_a_package_index(metadata: Message) -> None:
    text = CODE.sub("", str(metadata.get_payload(decode=True), "utf-8"))
    assert text.startswith("# treadle")
    assert [target for target in LINK_TARGET.findall(text) if not target.startswith("https://")] == []


def test_with_a_repository_the_links_lead_there() -> None:
    text = "![demo](docs/demo.svg) [start](docs/quickstart.md#1-write) [up](#top) [py](https://python.org)"
    shown = hatch_build.for_an_index(text, "https://example.org/treadle/")
    assert shown == (
        "![demo](https://example.org/treadle/raw/HEAD/docs/demo.svg)"
        " [start](https://example.org/treadle/blob/HEAD/docs/quickstart.md#1-write) up [py](https://python.org)"
    )


@pytest.mark.slow
def test_the_first_screen_of_the_readme_works_from_a_wheel_in_a_fresh_venv(wheel: Path, tmp_path: Path) -> None:
    venv, work = tmp_path / "venv", tmp_path / "work"
    work.mkdir()
    uv, surroundings = dev.uv(), dev.environment()
    quietly(surroundings, tmp_path, uv, "venv", "--python", sys.executable, str(venv))
    lock = str(ROOT / "requirements.lock")
    quietly(surroundings, tmp_path, uv, "pip", "install", "--python", str(venv), "--constraint", lock, str(wheel))
    kept = ("PATH", "HOME", "LANG", "TMPDIR")
    bare = {name: value for name, value in os.environ.items() if name in kept} | {"PYTHONPATH": str(work)}
    for language, code, _ in BLOCK.findall((ROOT / "README.md").read_text("utf-8")):
        if language == "python":
            if named := FILE.match(code):
                (work / named[1]).write_text(code)
            quietly(bare, work, str(venv / "bin" / "python"), "-c", code)
            continue
        for line in code.splitlines():
            name, *arguments = shlex.split(line.removeprefix("$ "))
            quietly(bare, work, str(venv / "bin" / name), *arguments)


def quietly(env: Mapping[str, str], cwd: Path, *command: str) -> None:
    done = subprocess.run(command, cwd=cwd, env=dict(env), capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}\n{done.stderr}"
