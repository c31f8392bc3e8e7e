"""What `dir` shows of an app and of a tenant's handle is what their users call, and nothing else."""

import pytest

from treadle import Treadle

BOTH = {
    "get", "find", "follow", "count", "counts", "view", "views", "masked", "masked_events", "masked_schedule",
    "events", "failures",
    "why", "memos", "amemos", "costs", "budgets", "abudgets",  # jobs
    "cancel", "retry", "edit", "run_now", "delete", "enqueue", "aenqueue", "schedules",
    "retry_many", "cancel_many", "delete_many", "resolve_id", "status",
    "pause", "resume", "pauses",
    "audit", "audit_page", "verify_audit",
    "aget", "afind", "acount", "acounts",
    "aevents", "awhy", "acosts", "acancel", "aretry", "apause", "aresume", "apauses",
    "aaudit", "stream", "astream", "wait_for", "await_for", "result_of", "aresult_of",
    "aaudit_page", "aedit", "arun_now", "adelete", "aretry_many", "acancel_many", "adelete_many",
    "aresolve_id", "astatus", "afailures",
    "engine", "profile", "settings",  # what it is made of
}  # fmt: skip
OF_THE_APP = {
    "task", "register", "tasks", "declare", "declared", "for_each", "logger", "hooks", "wake", "awake",
    "worker", "run_worker", "claim", "aclaim", "workers", "tenant", "drain", "drains", "stats", "tokens",
    "aworkers", "adrain", "adrains", "astats", "adoctor",
    "recover", "prune", "seal_audit",
    "open", "close", "override", "migrate", "check_schema", "schema_sql", "rls", "doctor",
}  # fmt: skip
OF_A_TENANT = {"name", "using"}


@pytest.fixture
def app() -> Treadle:
    return Treadle("sqlite:///:memory:")


def names(thing: object) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


def test_an_app_shows_what_its_users_call(app: Treadle) -> None:
    assert names(app) == BOTH | OF_THE_APP


def test_a_tenants_handle_shows_what_a_tenant_may_do(app: Treadle) -> None:
    assert names(app.tenant("acme")) == BOTH | OF_A_TENANT


def test_everything_that_is_shown_says_what_it_is_for(app: Treadle) -> None:
    for kind in (Treadle, type(app.tenant("acme"))):
        silent = [name for name in names(kind) if not getattr(kind, name).__doc__]
        assert silent == []
