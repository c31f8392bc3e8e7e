"""examples/chat_server: its own three test files pass, and what each of their tests proves; its files and its page."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable

import pytest

from tests.examples.chat_server import FOLDER, OWN_TESTS
from tests.examples.conftest import Example
from tests.support import provision
from tests.support.processes import ROOT

PROVED = {
    "000-AC-07.a": "test_ac_07_every_call_does_its_work_through_the_pool",
    "000-AC-08.a": "test_ac_08_create_job_returns_id",
    "000-AC-08.b": "test_ac_08_a_job_scheduled_for_later_is_not_claimed_before_its_time",
    "000-AC-09.b": "test_ac_09_claim_next_takes_the_first_by_priority_then_time_of_the_types_asked_for",
    "000-AC-10.a": "test_ac_10_mark_running_transition",
    "000-AC-11.a": "test_ac_11_complete_with_output",
    "000-AC-12.a": "test_ac_12_fail_with_retry",
    "000-AC-12.b": "test_ac_12_fail_with_retry",
    "000-AC-12.c": "test_ac_12_fail_exhausted",
    "000-AC-13.a": "test_ac_13_expire_stale_service",
    "000-AC-13.b": "test_ac_13_expire_stale_service",
    "000-AC-14.a": "test_ac_14_a_registered_handler_is_called_once_run_is_going",
    "000-AC-15.b": "test_ac_15_runner_poll_and_dispatch",
    "000-AC-15.d": "test_ac_15_a_type_without_a_handler_fails_and_is_not_retried",
    "000-AC-17.a": "test_ac_17_handler_exception_isolated",
    "000-AC-17.b": "test_ac_17_handler_exception_isolated",
    "000-AC-18.a": "test_ac_18_email_processing_handler",
    "000-R09.a": "test_ac_18_email_processing_handler",
    "000-R09.b": "test_email_processing_without_success_raises_its_error "
    "test_a_service_that_says_nothing_fails_in_the_words_of_its_handler",
    "000-R09.c": "test_ac_18_email_processing_handler",
    "000-AC-19.a": "test_ac_19_agent_invocation_handler",
    "000-AC-19.b": "test_ac_19_agent_invocation_handler",
    "000-R10.a": "test_agent_invocation_without_proposals_has_none_and_without_success_raises_its_error "
    "test_a_service_that_says_nothing_fails_in_the_words_of_its_handler",
    "000-R10.b": "test_ac_19_agent_invocation_handler "
    "test_agent_invocation_without_proposals_has_none_and_without_success_raises_its_error",
    "000-AC-20.a": "test_ac_20_reminder_delivery_handler",
    "000-R11.a": "test_a_missing_reminder_is_skipped",
    "000-R11.b": "test_ac_20_reminder_delivery_handler test_the_body_of_a_reminder_is_its_own_if_it_has_one",
    "000-R11.c": "test_ac_20_reminder_delivery_handler",
    "000-R19.b": "test_a_reminder_is_delivered_once_and_tried_again_after_a_failure",
    "000-AC-28.a": "test_ac_28_create_claim_running_complete",
    "000-AC-29.a": "test_ac_09_claim_next_skip_locked",
    "000-AC-30.a": "test_ac_12_fail_with_retry",
    "000-AC-31.a": "test_ac_31_a_job_that_failed_at_max_retries_stays_failed",
    "000-AC-32.a": "test_ac_13_expire_stale_service",
    "000-AC-32.b": "test_ac_13_expire_stale_service",
}
"""By clause, the tests of the example that prove it."""
SERVICES = FOLDER / "chatServer" / "services"
MODULES = ("job_service", "job_runner_service", "job_handlers")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bool]:
    """By test of the example, whether it passed, all its parameters included."""
    example = Example("chat_server", tmp_path_factory.mktemp("chat"))
    example.environment |= {
        "DATABASE_URL": provision.shared_postgres(),
        "PYTEST_ADDOPTS": "-p no:faker -p no:hypothesispytest -p no:schemathesis --junitxml=outcome.xml",
    }
    example.run(OWN_TESTS)
    passed: dict[str, bool] = {}
    for case in ET.parse(example.folder / "outcome.xml").iter("testcase"):  # noqa: S314 - we have written it
        name = case.attrib["name"].partition("[")[0]
        passed[name] = passed.get(name, True) and not len(case)
    return passed


@pytest.mark.slow
@pytest.mark.parametrize(
    "clause", [pytest.param(clause, marks=pytest.mark.covers(clause), id=clause) for clause in PROVED]
)
def test_a_clause_is_proved_by_the_examples_own_tests(outcomes: dict[str, bool], clause: str) -> None:
    assert {name: outcomes.get(name) for name in PROVED[clause].split()} == dict.fromkeys(PROVED[clause].split(), True)


@pytest.mark.slow
@pytest.mark.covers("000-R23.c")
def test_every_test_of_the_example_passes_on_a_real_postgresql(outcomes: dict[str, bool]) -> None:
    assert len(outcomes) >= 30
    assert [name for name, passed in outcomes.items() if not passed] == []


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.parametrize(
    ("module", "right", "wrong"), [("job_service", "max_retries + 1", "max_retries"), ("job_handlers", "[:500]", "")]
)
def test_they_notice_a_service_that_does_not_what_it_should(
    example: Callable[[str], Example], module: str, right: str, wrong: str
) -> None:
    opened = example("chat_server")
    opened.environment |= {
        "DATABASE_URL": provision.shared_postgres(),
        "PYTEST_ADDOPTS": "-x -p no:faker -p no:hypothesispytest -p no:schemathesis",
    }
    file = opened.folder / "chatServer" / "services" / f"{module}.py"
    file.write_text(file.read_text("utf-8").replace(right, wrong), "utf-8")
    running = opened.start(OWN_TESTS, f"tests/chatServer/services/test_{module}.py")
    assert re.search(r"\n1 failed", running.rest())


# ------------------------------------------------------------------------------------------- files and page


@pytest.mark.covers("000-R24.a", "000-R24.b")
def test_the_files_have_the_names_of_the_document() -> None:
    assert all((SERVICES / f"{module}.py").exists() for module in MODULES)
    migrations = sorted(path.name[14:] for path in (FOLDER / "supabase" / "migrations").iterdir())
    assert migrations == ["_create_chat_tables.sql", "_create_jobs_table.sql", "_migrate_email_jobs.sql"]
    tests = FOLDER / "tests" / "chatServer" / "services"
    assert all((tests / f"test_{module}.py").exists() for module in MODULES)


@pytest.mark.covers("000-R24.c")
@pytest.mark.parametrize(
    ("file", "uses"),
    [
        ("services/background_tasks.py", "self._job_service.create("),
        ("routers/external_api_router.py", "insert into jobs (user_id, job_type, input)"),
        ("database/user_scoped_tables.py", '"jobs"'),
        ("main.py", "JobRunnerService(job_service"),
    ],
)
def test_the_files_that_the_document_changes_use_the_queue(file: str, uses: str) -> None:
    text = (FOLDER / "chatServer" / file).read_text("utf-8")
    assert uses in text
    assert "email_processing_jobs" not in text


@pytest.mark.covers("000-R19.a")
def test_the_page_says_that_a_restart_may_duplicate_a_scheduled_agents_job() -> None:
    assert "**A restart may duplicate a scheduled agent's job.**" in (FOLDER / "README.md").read_text("utf-8")


@pytest.mark.covers("000-R23.d")
def test_the_migrations_use_no_service_and_the_services_no_test() -> None:
    package = {path: path.read_text("utf-8") for path in (FOLDER / "chatServer").rglob("*.py")}
    assert not [
        path for path, text in package.items() if re.search(r"import.*\b(chat_fixtures|pytest|testing)\b", text)
    ]
    migrate = package[FOLDER / "chatServer" / "database" / "migrate.py"]
    assert re.findall(r"chatServer\.(\w+)", migrate) == ["database"]


@pytest.mark.covers("000-R23.a")
def test_every_acceptance_criterion_has_a_test_that_carries_its_number() -> None:
    places = [*(ROOT / "tests").rglob("test_*.py"), *FOLDER.rglob("test_*.py")]
    text = "\n".join(path.read_text("utf-8") for path in places)
    numbers = {*re.findall(r"000-AC-(\d\d)", text), *re.findall(r"def test_ac_(\d\d)_", text)}
    assert {f"{number:02}" for number in range(1, 33)} - numbers == set()
