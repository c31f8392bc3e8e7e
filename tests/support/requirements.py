"""The registry of requirements and what the tests prove of it; run as a script it prints the account."""

from __future__ import annotations

import argparse
import difflib
import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

TESTS = Path(__file__).resolve().parents[1]
REGISTRY = TESTS / "requirements.toml"
NO_TESTS_COLLECTED = 5
ANY = "any"
HOME = {"000": "postgres", "001": "sqlite", "002": "postgres", "003": "dynamodb", "004": "postgres"}
"""The store that each document's application lives on: only a test there proves what the document asks."""


@dataclass(frozen=True)
class Requirement:
    """One numbered requirement; `engine` is the only store whose tests count for it, `engines` says so by clause."""

    id: str
    text: str
    clauses: Mapping[str, str]
    engine: str = ""
    engines: Mapping[str, str] = field(default_factory=dict)

    def engine_of(self, letter: str) -> str:
        """The only store whose tests count for this clause, or "any"."""
        return self.engines.get(letter) or self.engine or HOME[self.id[:3]]


class Line(TypedDict):
    """What the report says of one test: the marks it carries, how it ended, and on which engine."""

    covers: list[str]
    outcome: str
    engine: str | None


@dataclass(frozen=True)
class Proof:
    """What the tests say of one clause; `elsewhere`: a test passed on an engine that does not count."""

    letter: str
    sentence: str
    passed: Sequence[str]
    failed: Sequence[str]
    elsewhere: bool

    @property
    def waived(self) -> bool:
        return self.sentence.startswith("waived:")

    @property
    def closed(self) -> bool:
        return self.waived or (bool(self.passed) and not self.failed)


def load(path: Path = REGISTRY) -> dict[str, Requirement]:
    """Read the registry, in the order of the file."""
    rows = tomllib.loads(path.read_text(encoding="utf-8"))
    return {id: Requirement(id, **row) for id, row in rows.items()}


def complaint(mark: str, requirements: Mapping[str, Requirement]) -> str | None:
    """Say what is wrong with a mark such as 001-R20 or 001-R20.a, or None if it names something."""
    clauses = [f"{row.id}.{letter}" for row in requirements.values() for letter in row.clauses]
    known = [*requirements, *clauses]
    if mark in known:
        return None
    [nearest] = difflib.get_close_matches(mark, known, n=1, cutoff=0)
    return f"no requirement is called {mark!r}; the nearest is {nearest!r}"


def prove(requirement: Requirement, report: Mapping[str, Line]) -> list[Proof]:
    """Set the tests of a report against each clause of a requirement."""
    return [_proof(requirement, letter, report) for letter in requirement.clauses]


def account(proofs: Mapping[str, list[Proof]]) -> Iterable[str]:
    """Yield the printed lines: every id with its tests, the clauses open where work began, the counts."""
    for id, clauses in proofs.items():
        mark = "closed" if _closed(clauses) else "open  "
        yield f"{mark} {id:<10} " + "  ".join(f"{proof.letter}: {_tests(proof)}" for proof in clauses)
    yield "\nopen clauses of requirements that are partly covered:"
    for id, clauses in proofs.items():
        if any(proof.passed or proof.failed or proof.elsewhere for proof in clauses):
            still_open = (proof for proof in clauses if not proof.closed)
            yield from (f"{id}.{proof.letter}  {_why(proof)}: {proof.sentence}" for proof in still_open)
    for document in dict.fromkeys(id[:3] for id in proofs):
        rows = [clauses for id, clauses in proofs.items() if id.startswith(document)]
        yield f"{document}: {sum(map(_closed, rows))} of {len(rows)}"
    yield f"closed {sum(map(_closed, proofs.values()))} of {len(proofs)}"


def main(arguments: list[str] | None = None) -> int:
    """Run the marked tests, or read a report, and print the account; the answer is 1 if a test failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from", dest="report", type=Path, help="a file written by pytest --covers-report")
    parser.add_argument("--markdown", metavar="002", choices=HOME, help="print the matrix of a document's tests")
    chosen = parser.parse_args(arguments)
    if chosen.markdown:
        from tests.support.pages import matrix_page

        print(matrix_page(chosen.markdown), end="")
        return 0
    given = chosen.report
    report, sound = (json.loads(given.read_text(encoding="utf-8")), True) if given else _run_tests()
    for line in account({id: prove(row, report) for id, row in load().items()}):
        print(line)
    return 0 if sound and not any(map(_failed, report.values())) else 1


def _proof(requirement: Requirement, letter: str, report: Mapping[str, Line]) -> Proof:
    names = {requirement.id, f"{requirement.id}.{letter}"}
    tests = {test: line for test, line in report.items() if names.intersection(line["covers"])}
    failed = [test for test, line in tests.items() if _failed(line)]
    passed = [test for test, line in tests.items() if line["outcome"] == "passed"]
    counting = [test for test in passed if _counts(requirement.engine_of(letter), test, tests[test])]
    return Proof(letter, requirement.clauses[letter], counting, failed, elsewhere=len(passed) > len(counting))


def _counts(engine: str, test: str, line: Line) -> bool:
    if engine in (ANY, line["engine"]):
        return True
    return line["engine"] is None and f"/{engine}/" in "/" + test.partition("::")[0]


def _failed(line: Line) -> bool:
    return line["outcome"] in {"failed", "unfinished"}


def _closed(proofs: list[Proof]) -> bool:
    return bool(proofs) and all(proof.closed for proof in proofs)


def _tests(proof: Proof) -> str:
    tests = [_short(test) for test in proof.passed] + [f"FAILED {_short(test)}" for test in proof.failed]
    if not tests:
        return "waived" if proof.waived else "-"
    return ", ".join(tests[:2]) + (f" +{len(tests) - 2}" if len(tests) > 2 else "")


def _why(proof: Proof) -> str:
    if proof.failed:
        return "a test failed"
    return "only on another engine" if proof.elsewhere else "no test"


def _short(test: str) -> str:
    name, bracket, parameters = test.partition("[")
    name = name.rpartition("::")[2].removeprefix("test_")
    return (name if len(name) <= 44 else name[:43] + "…") + bracket + parameters


def _run_tests() -> tuple[dict[str, Line], bool]:
    """Run the marked tests; pytest's own words are shown only when it is not content."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "covers.json"
        pytest = subprocess.run(
            [sys.executable, "-m", "pytest", "-m", "covers", f"--covers-report={path}", "-q", TESTS],
            cwd=TESTS.parent, capture_output=True, text=True, check=False,
        )  # fmt: skip
        sound = pytest.returncode in {0, NO_TESTS_COLLECTED}
        if not sound:
            print(pytest.stdout, pytest.stderr, sep="\n", file=sys.stderr)
        return (json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}), sound


if __name__ == "__main__":
    sys.exit(main())
