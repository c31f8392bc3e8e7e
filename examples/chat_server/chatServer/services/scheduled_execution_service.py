"""Lets an agent work on its prompt."""

import json
import time
from typing import Any

from chatServer.database.connection import get_database_manager, rows
from chatServer.services import llm_service
from chatServer.services.http_client import ServiceFailed

PROPOSE = {
    "type": "function",
    "function": {
        "name": "propose_action",
        "description": "Propose something to be done, which the user has to approve.",
        "parameters": {"type": "object", "properties": {"action": {"type": "string"}}, "required": ["action"]},
    },
}


class ScheduledExecutionService:
    """Each call is an execution of its own: two jobs for one time are two answers."""

    def __init__(self) -> None:
        self._pool = get_database_manager().pool

    async def execute(self, schedule: dict[str, Any]) -> dict[str, Any]:
        """What came of it: `success`, and `output`, `duration_ms`, `pending_actions_created`; or `error`."""
        started = time.monotonic()
        config = schedule.get("config") or {}
        system = config.get("system") or f"You are the agent {schedule['agent_name']}."
        try:
            message = await llm_service.ask(system, schedule.get("prompt") or "", tools=[PROPOSE])
        except ServiceFailed as error:
            return {"success": False, "error": str(error)}
        proposed = [
            str(json.loads(one["function"]["arguments"]).get("action", "")) for one in message.get("tool_calls") or []
        ]
        for action in proposed:
            await rows(
                self._pool,
                "insert into pending_actions (user_id, schedule_id, action) values (%s, %s, %s)",
                schedule["user_id"], schedule.get("schedule_id"), action,
            )  # fmt: skip
        return {
            "success": True,
            "output": message.get("content") or "",
            "duration_ms": round((time.monotonic() - started) * 1000),
            "pending_actions_created": len(proposed),
        }
