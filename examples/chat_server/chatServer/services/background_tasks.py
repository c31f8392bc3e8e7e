"""What the process does by itself: four loops, and the one runner of all jobs."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

from chatServer.config import ChatSettings
from chatServer.database.connection import Pool, rows
from chatServer.services.executors import Executors
from chatServer.services.job_runner_service import JobRunnerService, is_stopping
from chatServer.services.job_service import JobService
from chatServer.services.reminder_service import ReminderService
from treadle import EngineUnavailable, InvalidTiming
from treadle.schedules.cron import next_after

DATABASE_AWAY = (EngineUnavailable, psycopg.OperationalError)

logger = logging.getLogger(__name__)


class BackgroundTaskService:
    def __init__(
        self, db_pool: Pool, job_service: JobService, job_runner: JobRunnerService, settings: ChatSettings
    ) -> None:
        self.executors = Executors()
        self._pool, self._settings = db_pool, settings
        self._job_service, self._job_runner = job_service, job_runner
        self._schedules: list[dict[str, Any]] = []
        self._last_run: dict[str, datetime] = {}  # by schedule; a restart forgets it
        self._tasks: list[asyncio.Task[None]] = []

    def start_background_tasks(self) -> None:
        every = self._settings
        loops = (
            (self.deactivate_stale_chat_session_instances, every.sessions_seconds),
            (self.evict_inactive_executors, every.executors_seconds),
            (self.run_scheduled_agents, every.schedules_seconds),
            (self.check_due_reminders, every.reminders_seconds),
        )
        self._tasks = [asyncio.create_task(_repeat(turn, pause), name=turn.__name__) for turn, pause in loops]
        self._tasks.append(asyncio.create_task(self._job_runner.run(), name="job_runner"))
        for task in self._tasks:
            task.add_done_callback(_log_end)

    async def stop_background_tasks(self) -> None:
        """Cancel them all, and wait until each has ended. A job that was running is pending again."""
        for task in self._tasks:
            task.remove_done_callback(_log_end)
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    async def deactivate_stale_chat_session_instances(self) -> None:
        await rows(
            self._pool,
            "update chat_session_instances set active = false"
            " where active and updated_at < now() - make_interval(secs => %s)",
            self._settings.session_idle_minutes * 60,
        )

    async def evict_inactive_executors(self) -> None:
        self.executors.evict(idle_seconds=self._settings.executor_idle_minutes * 60)

    async def run_scheduled_agents(self) -> None:
        """Enqueue an agent_invocation for each schedule that is due; nothing is executed here."""
        now = datetime.now(UTC)
        await self._reload_agent_schedules()
        for schedule in self._schedules:
            if self._should_run_now(schedule, now):
                await _alone(f"agent_schedules {schedule['id']}", self._execute_scheduled_agent(schedule, now))

    async def _reload_agent_schedules(self) -> None:
        self._schedules = await rows(self._pool, "select * from agent_schedules where active order by id")

    def _should_run_now(self, schedule: dict[str, Any], now: datetime) -> bool:
        """Whether its expression names this minute, and it has not run in it."""
        minute, last = now.replace(second=0, microsecond=0), self._last_run.get(str(schedule["id"]))
        if last is not None and last >= minute:
            return False
        try:
            return next_after(schedule["schedule_cron"], "UTC", minute - timedelta(seconds=1)) == minute
        except InvalidTiming as error:
            logger.warning("agent_schedules %s: schedule_cron: %s", schedule["id"], error)
            return False

    async def _execute_scheduled_agent(self, schedule: dict[str, Any], now: datetime) -> None:
        job_input = {
            "id": str(schedule["id"]),
            "schedule_id": str(schedule["id"]),
            "user_id": str(schedule["user_id"]),
            "agent_name": schedule["agent_name"],
            "prompt": schedule.get("prompt") or "",
            "config": schedule.get("config") or {},
        }
        await self._job_service.create(job_type="agent_invocation", input=job_input, user_id=schedule["user_id"])
        self._last_run[str(schedule["id"])] = now

    async def check_due_reminders(self) -> None:
        """Enqueue a reminder_delivery for each reminder that is due, unless there is one under way."""
        for reminder in await ReminderService(self._pool).due():
            await _alone(f"reminders {reminder['id']}", self._enqueue_reminder(reminder))

    async def _enqueue_reminder(self, reminder: dict[str, Any]) -> None:
        await self._job_service.create(
            job_type="reminder_delivery",
            input={"reminder_id": str(reminder["id"]), "user_id": str(reminder["user_id"])},
            user_id=reminder["user_id"],
            key=f"reminder:{reminder['id']}",
        )


async def _alone(row: str, enqueuing: Awaitable[None]) -> None:
    """One user's row that cannot be enqueued is logged, and those of others follow. An outage is everybody's."""
    try:
        await enqueuing
    except DATABASE_AWAY:
        raise  # it ends the turn; the next one finds what is due still
    except Exception as error:
        logger.warning("%s: no job was made: %s", row, error)


def _log_end(task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    logger.error("%s has ended: its work is no longer done", task.get_name(), exc_info=error)


async def _repeat(turn: Callable[[], Awaitable[None]], pause: float) -> None:
    """One turn after the other; one that fails is logged, and the next one comes as ever."""
    while True:
        try:
            await turn()
        except (Exception, asyncio.CancelledError):
            if is_stopping():
                raise
            logger.exception("%s", turn.__name__)
        await asyncio.sleep(pause)
