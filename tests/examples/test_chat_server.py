"""examples/chat_server, driven from outside by requests, SQL and signals: the five steps of its document, and edges."""

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.examples.chat_server import AGE, FOLDER, OLD_TABLES, Chat, Row, an_id, new_user, sql, token
from tests.support import provision
from tests.support.workbench import until

CONNECTIONS = "/api/external-connections"
COMMANDS = ("python -m chatServer.main", "pytest", "python -m chatServer.try_it")  # two are run by tests of their own
WRITE_DOWN = """
create table seen (number bigint generated always as identity, job uuid, status text);
create function write_down() returns trigger language plpgsql as $$
begin
    insert into public.seen (job, status) select j.id, j.status from public.jobs j where j.id = new.id;
    return null;
end $$;
create trigger write_down after insert or update on treadle.jobs for each row execute function write_down();
create trigger write_down after insert or update on treadle.finished for each row execute function write_down();
"""
"""A trigger sees every status; whoever asks now and then would miss `claimed`."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chat]:
    """The server, on a database in which the old tables lie."""
    database = provision.fresh_database(provision.shared_postgres())
    sql(database, (FOLDER / "supabase" / "local.sql").read_text("utf-8"))
    sql(database, OLD_TABLES)
    user = new_user(database)
    sql(database, "insert into email_processing_jobs (user_id, connection_id) values (%s, %s)", user, an_id())
    chat = Chat(database, tmp_path_factory.mktemp("chat"))
    try:
        chat.start()
        chat.old_user = user  # type: ignore[attr-defined]
        chat.sql(WRITE_DOWN)
        yield chat
    finally:
        chat.close()
        provision.drop_database(database)


@pytest.fixture
def user(chat: Chat) -> str:
    return new_user(chat.database)


def ended(chat: Chat, user: str, number: int = 1, *, skipped: bool = False) -> list[Row]:
    """This user's jobs, once there are so many and each has ended; without those that found nothing to do.

    A loop that read a reminder just before it was sent makes one more job, which is skipped.
    """

    def look() -> list[Row]:
        found = [job for job in chat.jobs(user) if skipped or not (job["output"] or {}).get("skipped")]
        return found if [job["status"] in ("complete", "failed") for job in found] == [True] * number else []

    return until(look, lambda: f"the end of {number} jobs: {chat.jobs(user)}")


def connect(chat: Chat, user: str, refresh_token: str | None = None) -> tuple[int, Any]:
    given = {"provider": "gmail", "address": "ada@example.org"}
    refresh_token = chat.gmail.mailbox.refresh_token if refresh_token is None else refresh_token
    return chat.ask("POST", CONNECTIONS, token(user), {**given, "refresh_token": refresh_token})


def remind(chat: Chat, user: str, when: str, recurrence: str | None = None) -> str:
    [row] = chat.sql(
        "insert into reminders (user_id, title, remind_at, recurrence)"
        " values (%s, 'Call Bob', now() + %s::interval, %s) returning id::text",
        user, when, recurrence,
    )  # fmt: skip
    return str(row["id"])


def delivered(chat: Chat, user: str) -> list[Any]:
    return [told for request in chat.receiver.received if (told := request.json())["user_id"] == user]


# ------------------------------------------------------------------------------------------- the five steps


@pytest.mark.covers("000-R16.a", "000-AC-25.a", "000-AC-18.a")
def test_a_new_mail_connection_has_a_job_that_is_seen_pending_claimed_running_and_complete(
    chat: Chat, user: str
) -> None:
    chat.gmail.add_message("Your invoice", "Please pay.", from_="bob@example.org")
    chat.llm.say("Somebody who has an invoice to pay.")
    status, answer = connect(chat, user)
    assert status == 201
    [job] = ended(chat, user)
    assert (job["job_type"], job["input"]) == ("email_processing", {"connection_id": answer["id"]})
    assert (job["status"], job["output"]) == ("complete", {"output_preview": "Somebody who has an invoice to pay."})
    seen = chat.sql("select status from seen where job = %s order by number", job["id"])
    assert [row["status"] for row in seen] == ["pending", "claimed", "running", "complete"]
    status, listed = chat.ask("GET", "/api/jobs", token(user))
    assert (status, [one["id"] for one in listed]) == (200, [str(job["id"])])
    [profile] = chat.sql("select summary, mails from email_profiles where user_id = %s", user)
    assert profile == {"summary": "Somebody who has an invoice to pay.", "mails": 1}


@pytest.mark.covers("000-R16.b", "000-AC-21.a", "000-R12.a")
def test_an_agent_schedule_makes_a_job_that_completes_with_what_the_model_says(chat: Chat, user: str) -> None:
    chat.llm.say("Nothing new today.")
    [schedule] = chat.sql(
        "insert into agent_schedules (user_id, agent_name, schedule_cron, prompt)"
        " values (%s, 'briefing', '* * * * *', 'What is new?') returning id::text",
        user,
    )
    until(lambda: chat.jobs(user), "the schedule makes a job")
    chat.sql("update agent_schedules set active = false where id = %s", schedule["id"])
    job = ended(chat, user, len(chat.jobs(user)))[0]  # two, if a minute began just now
    assert (job["job_type"], job["status"]) == ("agent_invocation", "complete")
    assert job["input"] == {
        "id": schedule["id"], "schedule_id": schedule["id"], "user_id": user, "agent_name": "briefing",
        "prompt": "What is new?", "config": {},
    }  # fmt: skip
    assert (job["output"]["output"], job["output"]["pending_actions"]) == ("Nothing new today.", 0)
    assert job["output"]["duration_ms"] >= 0


@pytest.mark.covers("000-R16.c", "000-AC-20.a", "000-R12.b", "000-AC-22.a")
def test_a_reminder_due_in_a_minute_is_delivered_then_and_comes_again(chat: Chat, user: str) -> None:
    reminder = remind(chat, user, "1 minute", "daily")
    witness = new_user(chat.database)
    remind(chat, witness, "0")
    ended(chat, witness)  # so the loop has looked meanwhile
    assert (chat.jobs(user), delivered(chat, user)) == ([], [])
    chat.sql("update reminders set remind_at = remind_at - interval '1 minute' where id = %s", reminder)
    [job] = ended(chat, user)
    assert (job["job_type"], job["input"]) == ("reminder_delivery", {"reminder_id": reminder, "user_id": user})
    assert (job["status"], job["output"]) == ("complete", {"delivered": True, "reminder_id": reminder})
    [told] = delivered(chat, user)
    assert (told["title"], told["metadata"]) == ("Reminder: Call Bob", {"reminder_id": reminder})
    first, second = chat.sql("select * from reminders where user_id = %s order by remind_at", user)
    assert (first["status"], second["status"], second["follows"]) == ("sent", "pending", first["id"])
    assert (second["remind_at"] - first["remind_at"]).days == 1


@pytest.mark.covers("000-R16.d", "000-AC-04.a", "000-AC-05.c")
def test_the_old_tables_are_gone_and_the_old_row_is_a_job(chat: Chat) -> None:
    old = ("email_processing_jobs", "email_digest_batches")
    assert chat.sql("select relname from pg_class where relname = any (%s)", list(old)) == []
    [job] = chat.jobs(chat.old_user)  # type: ignore[attr-defined]
    assert job["job_type"] == "email_processing"


@pytest.mark.covers("000-R16.e")
def test_a_server_that_is_killed_leaves_a_job_that_is_expired_and_retried_by_the_next_one(
    chat: Chat, user: str
) -> None:
    chat.llm.delay_next(60)
    asked = len(chat.llm.calls)
    connect(chat, user)
    chat.llm.wait_until(lambda: len(chat.llm.calls) > asked)
    chat.process.end(signal.SIGKILL)
    [job] = chat.jobs(user)
    assert (job["status"], job["retry_count"]) == ("running", 0)
    chat.start()
    witness = new_user(chat.database)
    remind(chat, witness, "0")
    ended(chat, witness)  # the new server works, and leaves the job alone: it may be somebody's
    assert [job["status"] for job in chat.jobs(user)] == ["running"]
    chat.llm.say("On the second try.")
    chat.sql(AGE, job["id"])
    retried = until(lambda: [row for row in chat.jobs(user) if row["retry_count"] == 1], "the job is expired")
    assert retried[0]["error"] == "Job timed out (stale claim)"
    chat.sql("update treadle.jobs set due_at = now() where id = %s and state = 'pending'", job["id"])  # no back-off
    [job] = ended(chat, user)
    assert (job["output"], job["retry_count"]) == ({"output_preview": "On the second try."}, 1)
    seen = [row["status"] for row in chat.sql("select status from seen where job = %s order by number", job["id"])]
    assert [status for number, status in enumerate(seen) if seen[number - 1 : number] != [status]] == [
        "pending", "claimed", "running", "pending", "claimed", "running", "complete",
    ]  # fmt: skip


# ------------------------------------------------------------------------------------------- the edges


@pytest.mark.covers("000-R19.b")
def test_a_reminder_that_is_enqueued_twice_is_delivered_once(chat: Chat, user: str) -> None:
    reminder = remind(chat, user, "1 hour")
    chat.sql(
        "insert into jobs (user_id, job_type, input) select %s, 'reminder_delivery',"
        " jsonb_build_object('reminder_id', %s::text, 'user_id', %s::text) from generate_series(1, 2)",
        user, reminder, user,
    )  # fmt: skip
    outputs = [job["output"] for job in ended(chat, user, 2, skipped=True)]
    assert outputs == [
        {"delivered": True, "reminder_id": reminder},
        {"skipped": True, "reason": "Reminder not found"},
    ]
    assert len(delivered(chat, user)) == 1


def test_bad_jobs_end_as_the_document_says_and_the_next_one_runs(chat: Chat, user: str) -> None:
    stranger = an_id()
    for job_type, input in (
        ("calendar_sync", "{}"), ("email_processing", "{}"), ("email_processing", "[1]"),
        ("email_processing", f'{{"connection_id": "{stranger}"}}'), ("reminder_delivery", '{"reminder": "7"}'),
    ):  # fmt: skip
        chat.sql("insert into jobs (user_id, job_type, input) values (%s, %s, %s)", user, job_type, input)
    until(lambda: all(job["error"] for job in chat.jobs(user)), "each is tried")
    unknown, empty, a_list, missing, half = chat.jobs(user)
    assert (unknown["status"], unknown["error"]) == ("failed", "No handler registered for job_type: calendar_sync")
    assert unknown["retry_count"] == 0
    errors = [job["error"] for job in (empty, a_list, missing, half)]
    assert errors[::2] == ["'connection_id'", f"Connection {stranger} not found"]
    assert "list indices" in errors[1]
    assert errors[3] == "'reminder_id'"
    assert {(job["status"], job["retry_count"]) for job in (empty, a_list, missing, half)} == {("pending", 1)}
    remind(chat, user, "0")
    until(lambda: delivered(chat, user), "the runner goes on")


def test_a_mailbox_that_refuses_is_tried_again_until_its_retries_are_used_up(chat: Chat, user: str) -> None:
    connect(chat, user, "1//a-token-that-was-revoked")
    for retry in range(1, 4):
        [job] = until(lambda n=retry: [one for one in chat.jobs(user) if one["retry_count"] == n], "it is retried")
        assert (job["status"], job["error"]) == ("pending", "Gmail: 400 Token has been expired or revoked.")
        assert (job["scheduled_for"] - job["updated_at"]).total_seconds() == pytest.approx(30 * 2 ** (retry - 1), abs=2)
        chat.sql("update treadle.jobs set due_at = now() where id = %s", job["id"])
    [job] = ended(chat, user)
    assert (job["status"], job["retry_count"]) == ("failed", 3)
    assert chat.gmail.mailbox.refresh_token not in str(job)


def test_a_bad_request_is_refused_by_the_name_of_its_field_and_makes_no_job(chat: Chat, user: str) -> None:
    good = {"provider": "gmail", "address": "ada@example.org", "refresh_token": "1//x"}
    for body, field in (
        ("{", "body"), ("[]", "body"), ({**good, "provider": "aol"}, "provider"), ({**good, "address": ""}, "address"),
        ({**good, "refresh_token": 7}, "refresh_token"), ({"provider": "gmail"}, "address"),
        ({**good, "address": "a\0b@example.org"}, "address"), ({**good, "address": "a\ud800b@example.org"}, "address"),
        ({**good, "refresh_token": "1//x\0"}, "refresh_token"), ({**good, "provider": float("nan")}, "provider"),
        ({"provider": "gmail", "refresh_token": "1//x"}, "address"),
    ):  # fmt: skip
        status, answer = chat.ask("POST", CONNECTIONS, token(user), body)
        assert (status, field in str(answer["detail"][0]["loc"])) == (422, True), answer
        assert "1//x" not in str(answer)
    for bearer in (
        "", "no token", token(user, secret="another secret"), token(user, seconds=-1), token("nobody"),
        token(user, algorithm="none"), token(user, exp=float("nan")), token(user, exp=float("inf")),
        token(user, exp="9999999999"), token(user, role="anon"), token(user, aud="another project"),
    ):  # fmt: skip
        status, answer = chat.ask("POST", CONNECTIONS, bearer, good)
        assert (status, "authorization" in answer["detail"]) == (401, True), bearer
    deleted = new_user(chat.database)
    chat.sql("delete from auth.users where id = %s", deleted)
    assert chat.ask("POST", CONNECTIONS, token(deleted), good)[0] == 403
    assert chat.jobs(user) == chat.jobs(deleted) == []


def test_the_server_goes_on_after_the_database_has_cut_its_connections(chat: Chat, user: str) -> None:
    chat.sql(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where datname = current_database() and pid <> pg_backend_pid()"
    )
    remind(chat, user, "0")
    [job] = ended(chat, user)
    assert (job["status"], len(delivered(chat, user))) == ("complete", 1)
    assert chat.ask("GET", "/api/jobs", token(user))[0] == 200


def test_settings_that_are_missing_are_named_without_a_traceback(chat: Chat) -> None:
    before = dict(chat.example.environment)
    try:
        chat.example.environment |= {"SUPABASE_JWT_SECRET": "short", "RUNNER_POLL_SECONDS": "0"}
        said = chat.example.start(COMMANDS[0]).rest()
    finally:
        chat.example.environment = before
    assert said.startswith("chatServer: ")
    assert len(said.splitlines()) == 1
    assert "SUPABASE_JWT_SECRET: " in said
    assert "RUNNER_POLL_SECONDS: " in said
    assert "short" not in said


def test_at_sigterm_the_job_is_given_back_and_the_server_ends(chat: Chat, user: str) -> None:
    chat.llm.delay_next(60)
    asked = len(chat.llm.calls)
    connect(chat, user)
    chat.llm.wait_until(lambda: len(chat.llm.calls) > asked)
    assert "chat: stopped" in chat.process.end(signal.SIGTERM)
    assert [(job["status"], job["retry_count"]) for job in chat.jobs(user)] == [("pending", 0)]
    chat.start()
    assert [job["status"] for job in ended(chat, user)] == ["complete"]
