"""The store as a whole, as its server tells of it: what `treadle top`, `doctor`, `tasks` and `audit verify` show."""

from typing import Any

from treadle import Finding
from treadle.app.audit import AuditReport
from treadle.app.top import Overview
from treadle.client import values
from treadle.client.transport import Transport
from treadle.client.values import read


class RemoteOversight:
    """Looks at the whole store; a token that is bound to a tenant or to queues sees only some of it, or nothing."""

    _http: Transport

    def overview(self) -> Overview:
        """What needs attention first, then queues and rates, running jobs, workers and what runs next."""
        answer = self._http.get("/overview")
        return read(lambda: values.overview_from(answer))

    def doctor(self) -> list[Finding]:
        """What an operator should know about the server's store."""
        answer = self._http.get("/doctor")
        return read(lambda: [values.finding_from(one) for one in answer["findings"]])

    def verify_audit(self, *, tenant: str | None = None) -> AuditReport:
        """Whether the sealed audit events are as they were. The server reads all of them, so it may take its time."""
        answer = self._http.get_long("/audit/verify", {"tenant": tenant})
        return read(lambda: values.audit_report_from(answer))

    def task_views(self, name: str | None = None) -> list[dict[str, Any]]:
        """The tasks that the server's app has, or the one of this name, each with the JSON Schema of its payload."""
        answer = self._http.get("/tasks", {"name": name})
        return read(lambda: [dict(task) for task in answer["tasks"]])
