"""The handlers: thin, because the work is that of the services. Whose work it is says the job, never its input."""

from typing import Any

from chatServer.database.supabase_client import create_system_client
from chatServer.services.email_onboarding_service import EmailOnboardingService
from chatServer.services.notification_service import NotificationService
from chatServer.services.reminder_service import ReminderService
from chatServer.services.scheduled_execution_service import ScheduledExecutionService


async def handle_email_processing(job: dict[str, Any]) -> dict[str, Any]:
    """Wrap EmailOnboardingService.process_job()."""
    service = EmailOnboardingService()
    adapted = {
        "id": str(job["id"]),
        "user_id": str(job["user_id"]),
        "connection_id": job["input"]["connection_id"],
        "status": job["status"],
    }
    result = await service.process_job(adapted)
    if not result.get("success"):
        raise RuntimeError(result.get("error") or "Email processing failed")
    return {"output_preview": (result.get("output") or "")[:500]}


async def handle_agent_invocation(job: dict[str, Any]) -> dict[str, Any]:
    """Wrap ScheduledExecutionService.execute()."""
    service = ScheduledExecutionService()
    schedule = job["input"]
    schedule_id = schedule.get("id") or schedule.get("schedule_id")
    owner = str(job["user_id"])
    result = await service.execute({**schedule, "user_id": owner, "id": schedule_id, "schedule_id": schedule_id})
    if not result.get("success"):
        raise RuntimeError(result.get("error") or "Agent invocation failed")
    return {
        "output": (result.get("output") or "")[:5000],
        "duration_ms": result.get("duration_ms"),
        "pending_actions": result.get("pending_actions_created") or 0,
    }


async def handle_reminder_delivery(job: dict[str, Any]) -> dict[str, Any]:
    """Deliver a single reminder via NotificationService."""
    db_client = await create_system_client()
    reminder_service = ReminderService(db_client)
    notification_service = NotificationService(db_client)

    reminder_id = job["input"]["reminder_id"]
    user_id = str(job["user_id"])

    reminder = await reminder_service.get_reminder(reminder_id, user_id)
    if not reminder:
        return {"skipped": True, "reason": "Reminder not found"}

    await notification_service.notify_user(
        user_id=user_id,
        title=f"Reminder: {reminder['title']}",
        body=reminder.get("body") or reminder["title"],
        category="reminder",
        metadata={"reminder_id": str(reminder["id"])},
    )
    await reminder_service.mark_sent(reminder["id"])
    await reminder_service.handle_recurrence(reminder)

    return {"delivered": True, "reminder_id": str(reminder_id)}
