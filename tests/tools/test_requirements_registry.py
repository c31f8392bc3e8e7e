"""The registry of requirements is complete, and a clause is closed only by what proves it."""

import re

import pytest

from tests.support.requirements import Line, Requirement, account, complaint, load, prove

ENGINES = {"any", "sqlite", "postgres", "dynamodb"}


def requirement(engine: str = "any", **clauses: str) -> Requirement:
    return Requirement("001-R20", "a job is kept", clauses or {"a": "it is kept"}, engine)


def line(*covers: str, outcome: str = "passed", engine: str | None = None) -> Line:
    return Line(covers=list(covers), outcome=outcome, engine=engine)


def closed(row: Requirement, report: dict[str, Line]) -> list[str]:
    return [proof.letter for proof in prove(row, report) if proof.closed]


def test_there_are_exactly_189_requirements():
    assert len(load()) == 189


def test_the_ids_are_well_formed_and_each_document_counts_up_without_a_gap():
    series: dict[str, list[int]] = {}
    for id in load():
        name = re.fullmatch(r"(00[0-4]-(?:AC-|[A-Z]))(\d{1,2})", id)
        assert name, id
        series.setdefault(name[1], []).append(int(name[2]))
    assert all(numbers == list(range(1, len(numbers) + 1)) for numbers in series.values())


def test_every_document_brings_its_own_number_of_requirements():
    documents = [id[:3] for id in load()]
    assert {name: documents.count(name) for name in documents} == {
        "000": 56, "001": 36, "002": 59, "003": 22, "004": 16,
    }  # fmt: skip


@pytest.mark.parametrize("row", load().values(), ids=lambda row: row.id)
def test_every_requirement_has_a_text_a_known_engine_and_clauses_lettered_from_a(row):
    assert row.text.strip()
    assert "\n" not in row.text
    assert row.clauses
    assert {row.engine_of(letter) for letter in row.clauses} <= ENGINES
    assert set(row.engines) <= set(row.clauses)
    assert list(row.clauses) == [chr(ord("a") + place) for place in range(len(row.clauses))]
    assert all(sentence.strip() for sentence in row.clauses.values())


def test_only_the_mocked_pool_and_the_rollback_are_waived():
    waived = [(row.id, letter) for row in load().values() for letter in closed(row, {})]
    assert waived == [("000-R23", "b"), ("002-M4", "b")]


def test_a_mark_with_the_bare_id_closes_every_clause():
    assert closed(requirement(a="one", b="two"), {"tests/t.py::test_x": line("001-R20")}) == ["a", "b"]


def test_a_mark_with_a_letter_closes_that_clause_only():
    assert closed(requirement(a="one", b="two"), {"tests/t.py::test_x": line("001-R20.b")}) == ["b"]


def test_a_test_of_another_requirement_closes_nothing():
    assert closed(requirement(), {"tests/t.py::test_x": line("001-R2", "001-R201", "001-R20.b")}) == []


@pytest.mark.parametrize("outcome", ["failed", "skipped", "unfinished"])
def test_a_clause_is_not_closed_by_a_test_that_did_not_pass(outcome):
    assert closed(requirement(), {"tests/t.py::test_x": line("001-R20", outcome=outcome)}) == []


def test_one_failing_test_keeps_a_clause_open_that_another_proves():
    report = {"tests/t.py::test_x": line("001-R20"), "tests/t.py::test_y": line("001-R20", outcome="failed")}
    assert closed(requirement(), report) == []


def test_a_skipped_test_does_not_undo_a_passing_one():
    report = {"tests/t.py::test_x": line("001-R20"), "tests/t.py::test_y": line("001-R20", outcome="skipped")}
    assert closed(requirement(), report) == ["a"]


def test_a_clause_is_not_closed_by_a_test_on_another_engine():
    row = requirement(engine="postgres")
    assert closed(row, {"tests/t.py::test_x[sqlite]": line("001-R20", engine="sqlite")}) == []
    assert closed(row, {"tests/t.py::test_x[postgres]": line("001-R20", engine="postgres")}) == ["a"]


def test_a_test_without_an_engine_counts_for_one_only_from_its_folder():
    row = requirement(engine="postgres")
    assert closed(row, {"tests/model/test_x.py::test_x": line("001-R20")}) == []
    assert closed(row, {"tests/model/test_x.py::test_x[/postgres/]": line("001-R20")}) == []
    assert closed(row, {"tests/engines/postgres/test_x.py::test_x": line("001-R20")}) == ["a"]
    assert closed(row, {"postgres/test_x.py::test_x": line("001-R20")}) == ["a"]


def test_a_requirement_of_any_engine_is_closed_on_each():
    assert closed(requirement("any"), {"tests/t.py::test_x": line("001-R20", engine="dynamodb")}) == ["a"]


@pytest.mark.parametrize(
    ("document", "home"),
    [("000", "postgres"), ("001", "sqlite"), ("002", "postgres"), ("003", "dynamodb"), ("004", "postgres")],
)
def test_a_requirement_without_an_engine_is_closed_on_the_engine_of_its_document_alone(document, home):
    row = Requirement(f"{document}-R20", "a job is kept", {"a": "it is kept"})
    for engine in ("sqlite", "postgres", "dynamodb"):
        report = {"tests/t.py::test_x": line(row.id, engine=engine)}
        assert closed(row, report) == (["a"] if engine == home else [])
    assert closed(row, {"tests/t.py::test_x": line(row.id)}) == []


def test_one_clause_of_a_requirement_may_be_of_another_engine():
    row = Requirement("001-R20", "a job is kept", {"a": "one", "b": "two"}, engines={"b": "any"})
    assert closed(row, {"tests/model/test_x.py::test_x": line("001-R20")}) == ["b"]


def test_a_waived_clause_is_closed_without_a_test():
    assert closed(requirement(a="one", b="waived: no need"), {}) == ["b"]


def test_an_unknown_mark_is_answered_with_the_nearest_id():
    rows = {"001-R20": requirement()}
    assert complaint("001-R20", rows) is None
    assert complaint("001-R20.a", rows) is None
    assert "'001-R20.a'" in (complaint("001-R20.c", rows) or "")
    assert "'001-R20'" in (complaint("001-R2", rows) or "")


def test_the_account_lists_the_open_clauses_of_what_was_begun_and_ends_with_the_count():
    half, whole, none = requirement(a="one", b="two"), requirement(), requirement()
    report = {"tests/t.py::test_x": line("001-R20.a")}
    lines = list(account({"one": prove(half, report), "two": prove(whole, report), "three": prove(none, {})}))
    assert lines[0].startswith("open   one")
    assert lines[1].startswith("closed two")
    assert [said for said in lines if "no test" in said] == ["one.b  no test: two"]
    assert lines[-4:] == ["one: 0 of 1", "two: 1 of 1", "thr: 0 of 1", "closed 1 of 3"]
