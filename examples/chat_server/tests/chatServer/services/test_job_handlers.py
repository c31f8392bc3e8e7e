"""The three handlers, with their real services; mailbox, model and receiver are stand-ins."""

from typing import Any
from uuid import uuid4

import pytest
from chat_fixtures import Sql
from chatServer.database.supabase_client import create_system_client
from chatServer.services.email_onboarding_service import EmailOnboardingService
from chatServer.services.job_handlers import (
    handle_agent_invocation,
    handle_email_processing,
    handle_reminder_delivery,
)
from chatServer.services.notification_service import NotificationService
from chatServer.services.reminder_service import ReminderService
from chatServer.services.scheduled_execution_service import ScheduledExecutionService

from treadle.testing.fakes import GmailServer, LlmServer, WebhookReceiver

Result = dict[str, Any]


def a_job(user: str, **input: object) -> Result:
    return {"id": str(uuid4()), "user_id": user, "status": "claimed", "input": input}


async def a_connection(sql: Sql, user: str, refresh_token: str) -> str:
    [row] = await sql(
        "insert into external_api_connections (user_id, provider, address, refresh_token)"
        " values (%s, 'gmail', 'ada@example.org', %s) returning id::text",
        user, refresh_token,
    )  # fmt: skip
    return str(row["id"])


async def a_reminder(sql: Sql, user: str, **more: object) -> Result:
    given = {"user_id": user, "title": "Call Bob", "body": None, "recurrence": None, "ago": "1 minute", **more}
    [row] = await sql(
        "insert into reminders (user_id, title, body, recurrence, remind_at)"
        " values (%s, %s, %s, %s, now() - %s::interval) returning *",
        *given.values(),
    )
    return row


# ------------------------------------------------------------------------------------------------- email


async def test_ac_18_email_processing_handler(
    user: str, sql: Sql, gmail: GmailServer, llm: LlmServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    gmail.add_message("Your invoice", "Please pay.", from_="bob@example.org")
    llm.say("x" * 501)
    connection = await a_connection(sql, user, gmail.mailbox.refresh_token)
    given = []
    process_job = EmailOnboardingService.process_job

    async def seen(self: EmailOnboardingService, job: Result) -> Result:
        given.append(job)
        return await process_job(self, job)

    monkeypatch.setattr(EmailOnboardingService, "process_job", seen)
    job = a_job(user, connection_id=connection, more="is not passed on")
    assert await handle_email_processing(job) == {"output_preview": "x" * 500}
    assert given == [{"id": job["id"], "user_id": user, "connection_id": connection, "status": "claimed"}]
    [asked] = llm.calls
    assert "From: bob@example.org\nSubject: Your invoice\nPlease pay." in asked["messages"][1]["content"]
    [profile] = await sql("select summary, mails, user_id::text from email_profiles")
    assert profile == {"summary": "x" * 501, "mails": 1, "user_id": user}


async def test_a_mailbox_read_twice_leaves_one_profile(user: str, sql: Sql, gmail: GmailServer, llm: LlmServer) -> None:
    connection = await a_connection(sql, user, gmail.mailbox.refresh_token)
    for words in ("first", "second"):
        llm.say(words)
        assert await handle_email_processing(a_job(user, connection_id=connection)) == {"output_preview": words}
    assert await sql("select summary from email_profiles") == [{"summary": "second"}]


async def test_email_processing_without_success_raises_its_error(
    user: str, sql: Sql, gmail: GmailServer, llm: LlmServer
) -> None:
    connection = await a_connection(sql, user, gmail.mailbox.refresh_token)
    llm.fail_next(500)
    with pytest.raises(RuntimeError, match=r"^the language model: 500 "):
        await handle_email_processing(a_job(user, connection_id=connection))
    gmail.revoke()
    with pytest.raises(RuntimeError, match=r"^Gmail: 400 Token has been expired or revoked"):
        await handle_email_processing(a_job(user, connection_id=connection))
    gmail.close()
    with pytest.raises(RuntimeError, match=r"^Gmail does not answer: ConnectError$"):
        await handle_email_processing(a_job(user, connection_id=connection))
    assert await sql("select 1 from email_profiles") == []


async def test_a_connection_that_does_not_exist_or_is_another_users_is_not_found(
    user: str, sql: Sql, gmail: GmailServer
) -> None:
    await sql("insert into auth.users values (%s)", stranger := str(uuid4()))
    theirs = await a_connection(sql, stranger, gmail.mailbox.refresh_token)
    for connection in (theirs, str(uuid4()), "none at all"):
        with pytest.raises(RuntimeError, match=f"^Connection {connection} not found$"):
            await handle_email_processing(a_job(user, connection_id=connection))
    assert gmail.requests == []


async def test_a_service_that_says_nothing_fails_in_the_words_of_its_handler(
    user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(_: object, __: Result) -> Result:
        return {"success": False}

    monkeypatch.setattr(EmailOnboardingService, "process_job", silent)
    monkeypatch.setattr(ScheduledExecutionService, "execute", silent)
    with pytest.raises(RuntimeError, match=r"^Email processing failed$"):
        await handle_email_processing(a_job(user, connection_id="7"))
    with pytest.raises(RuntimeError, match=r"^Agent invocation failed$"):
        await handle_agent_invocation(a_job(user))


async def test_malformed_input_is_an_exception_that_names_what_is_missing(user: str) -> None:
    with pytest.raises(KeyError, match="connection_id"):
        await handle_email_processing(a_job(user))
    with pytest.raises(KeyError, match="reminder_id"):
        await handle_reminder_delivery(a_job(user))
    with pytest.raises(KeyError, match="agent_name"):
        await handle_agent_invocation(a_job(user, prompt="Hello"))


# ------------------------------------------------------------------------------------------------- agents


@pytest.mark.parametrize("name", ["id", "schedule_id"])
async def test_ac_19_agent_invocation_handler(
    user: str, sql: Sql, llm: LlmServer, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    given = []
    execute = ScheduledExecutionService.execute

    async def seen(self: ScheduledExecutionService, schedule: Result) -> Result:
        given.append(schedule)
        return await execute(self, schedule)

    monkeypatch.setattr(ScheduledExecutionService, "execute", seen)
    schedule_id = str(uuid4())
    schedule = {"user_id": user, "agent_name": "briefing", "prompt": "What is new?", "config": {"system": "Be brief."}}
    llm.say("y" * 5001, tools={"propose_action": {"action": "Answer Bob"}})
    result = await handle_agent_invocation(a_job(user, **schedule, **{name: schedule_id}))
    assert (result["output"], result["pending_actions"]) == ("y" * 5000, 1)
    assert isinstance(result["duration_ms"], int)
    assert given == [{**schedule, "id": schedule_id, "schedule_id": schedule_id}]
    [asked] = llm.calls
    assert [message["content"] for message in asked["messages"]] == ["Be brief.", "What is new?"]
    [action] = await sql("select action, schedule_id::text, user_id::text from pending_actions")
    assert action == {"action": "Answer Bob", "schedule_id": schedule_id, "user_id": user}


async def test_agent_invocation_without_proposals_has_none_and_without_success_raises_its_error(
    user: str, llm: LlmServer
) -> None:
    schedule = {"id": str(uuid4()), "user_id": user, "agent_name": "briefing", "prompt": "", "config": {}}
    llm.say("Nothing is new.")
    result = await handle_agent_invocation(a_job(user, **schedule))
    assert (result["output"], result["pending_actions"]) == ("Nothing is new.", 0)
    assert set(result) == {"output", "duration_ms", "pending_actions"}
    llm.fail_next(429, error="rate_limit_exceeded")
    with pytest.raises(RuntimeError, match=r"^the language model: 429 "):
        await handle_agent_invocation(a_job(user, **schedule))


# ---------------------------------------------------------------------------------------------- reminders


async def test_ac_20_reminder_delivery_handler(
    user: str, sql: Sql, receiver: WebhookReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    for service, name in (
        (NotificationService, "notify_user"), (ReminderService, "mark_sent"), (ReminderService, "handle_recurrence"),
    ):  # fmt: skip
        method = getattr(service, name)

        async def seen(self: object, *args: Any, _name: str = name, _method: Any = method, **more: Any) -> None:
            calls.append(_name)
            await _method(self, *args, **more)

        monkeypatch.setattr(service, name, seen)
    reminder = await a_reminder(sql, user, recurrence="daily")
    reminder_id = str(reminder["id"])
    assert await handle_reminder_delivery(a_job(user, reminder_id=reminder_id, user_id=user)) == {
        "delivered": True,
        "reminder_id": reminder_id,
    }
    assert calls == ["notify_user", "mark_sent", "handle_recurrence"]
    [request] = receiver.received
    told = {"title": "Reminder: Call Bob", "body": "Call Bob", "category": "reminder"}
    assert request.json() == {**told, "user_id": user, "metadata": {"reminder_id": reminder_id}}
    assert await sql("select title, body, category, metadata from notifications") == [
        {**told, "metadata": {"reminder_id": reminder_id}}
    ]
    [sent, following] = await sql("select * from reminders order by remind_at")
    assert (sent["status"], sent["sent_at"] is not None) == ("sent", True)
    assert (following["status"], following["follows"], following["recurrence"]) == ("pending", sent["id"], "daily")
    assert (following["remind_at"] - sent["remind_at"]).days == 1


async def test_the_body_of_a_reminder_is_its_own_if_it_has_one(user: str, sql: Sql, receiver: WebhookReceiver) -> None:
    reminder = await a_reminder(sql, user, body="About the boat")
    await handle_reminder_delivery(a_job(user, reminder_id=str(reminder["id"]), user_id=user))
    assert [request.json()["body"] for request in receiver.received] == ["About the boat"]
    assert len(await sql("select 1 from reminders")) == 1  # it does not come again


async def test_a_missing_reminder_is_skipped(user: str, receiver: WebhookReceiver) -> None:
    for missing in (str(uuid4()), "no id"):
        result = await handle_reminder_delivery(a_job(user, reminder_id=missing, user_id=user))
        assert result == {"skipped": True, "reason": "Reminder not found"}
    assert receiver.received == []


async def test_whose_work_it_is_says_the_job_and_not_its_input(
    user: str, sql: Sql, llm: LlmServer, receiver: WebhookReceiver
) -> None:
    await sql("insert into auth.users values (%s)", stranger := str(uuid4()))
    theirs, own = str((await a_reminder(sql, stranger))["id"]), str((await a_reminder(sql, user))["id"])
    result = await handle_reminder_delivery(a_job(user, reminder_id=theirs, user_id=stranger))
    assert result == {"skipped": True, "reason": "Reminder not found"}
    await handle_reminder_delivery(a_job(user, reminder_id=own, user_id=stranger))
    assert [request.json()["user_id"] for request in receiver.received] == [user]
    llm.say("", tools={"propose_action": {"action": "Pay"}})
    await handle_agent_invocation(a_job(user, user_id=stranger, agent_name="briefing"))
    assert await sql("select user_id::text from pending_actions") == [{"user_id": user}]


async def test_a_reminder_is_delivered_once_and_tried_again_after_a_failure(
    user: str, sql: Sql, receiver: WebhookReceiver
) -> None:
    reminder = await a_reminder(sql, user, recurrence="weekly", ago="20 days")
    job = a_job(user, reminder_id=str(reminder["id"]), user_id=user)
    receiver.fail_next(503)
    with pytest.raises(Exception, match=r"^the receiver of notifications: 503"):
        await handle_reminder_delivery(job)
    assert await sql("select 1 from notifications") == []
    assert (await handle_reminder_delivery(job)).get("delivered") is True
    assert (await handle_reminder_delivery(job)).get("skipped") is True
    assert len(receiver.received) == 1
    await ReminderService(await create_system_client()).handle_recurrence(reminder)  # again, as after a crash
    rows = await sql("select remind_at, remind_at > now() as comes from reminders order by remind_at")
    assert [row["comes"] for row in rows] == [False, True]
    assert (rows[1]["remind_at"] - rows[0]["remind_at"]).days == 21  # what was missed is not made up for
