"""The schedules of a server."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from treadle.app.queries import LARGEST_PAGE
from treadle.client import values
from treadle.client.transport import Transport, segment
from treadle.client.values import read
from treadle.client.words import given
from treadle.errors import InvalidJob, NotPossible, ScheduleNotFound
from treadle.model import Event, Job
from treadle.model.records import Schedule, subject_of_schedule
from treadle.schedules.cron import Tick
from treadle.schedules.pages import SchedulePage

DEFAULT_TENANT = "default"


class RemoteSchedules:
    """`there.schedules`: what `app.schedules` does, done by a server."""

    def __init__(self, http: Transport) -> None:
        self._http = http

    def list(self, *, limit: int | None = None, cursor: str | None = None, **filters: Any) -> SchedulePage:
        """The schedules, by tenant and name; filters as in `app.schedules.list`. Without a limit it is all of them."""
        if limit is not None and (not isinstance(limit, int) or limit < 1):
            raise InvalidJob("limit", f"{limit!r} must be a number from 1 on, or left out for all of them")
        found, cursor = self._http.pages("/schedules", "schedules", given(filters), limit=limit, cursor=cursor)
        return SchedulePage(read(lambda: [values.schedule_from(one) for one in found]), cursor)

    def get(self, name: str, *, tenant: str | None = None) -> Schedule:
        """The schedule of this name; ScheduleNotFound if there is none."""
        answer = self._http.get(_path(name), {"tenant": tenant})
        return read(lambda: values.schedule_from(answer["schedule"]))

    def events(self, name: str, *, tenant: str | None = None) -> Sequence[Event]:
        """What was done to a schedule, oldest first; also to one that is gone."""
        owner = tenant or DEFAULT_TENANT
        try:
            answer = self._http.get(_path(name), {"tenant": tenant})
        except ScheduleNotFound:
            query = {"job": subject_of_schedule(owner, name), "limit": LARGEST_PAGE}
            try:
                gone = self._http.get("/audit", query)
            except NotPossible:  # a token that is bound to queues does not see the trail
                gone = None
            if gone is None:
                raise
            return read(lambda: values.trail_from(gone).events[::-1])
        return read(lambda: _events(answer))

    def preview(
        self, name: str, n: int = 5, *, after: datetime | None = None, tenant: str | None = None
    ) -> Sequence[Tick]:
        """Its next runs."""
        query = {"n": n, "after": after and after.isoformat(), "tenant": tenant}
        answer = self._http.get(f"{_path(name)}/preview", query)
        return read(lambda: [values.tick_from(tick) for tick in answer["ticks"]])

    def create(
        self,
        name: str,
        task: str,
        payload: Any = None,
        *,
        tenant: str | None = None,
        checked: bool = True,
        actor: str = "",
        reason: str = "",
        **options: Any,
    ) -> Schedule:
        """Make a schedule; a server with an app checks its payload."""
        body = {"name": name, "task": task, "payload": payload, "tenant": tenant, "reason": reason, **given(options)}
        answer = self._http.post("/schedules", body)
        return read(lambda: values.schedule_from(answer["schedule"]))

    def update(
        self,
        name: str,
        *,
        tenant: str | None = None,
        checked: bool = True,
        actor: str = "",
        reason: str = "",
        **options: Any,
    ) -> Schedule:
        """Change what is given."""
        answer = self._http.patch(_path(name), {**given(options), "reason": reason}, query={"tenant": tenant})
        return read(lambda: values.schedule_from(answer["schedule"]))

    def enable(self, name: str, *, tenant: str | None = None, actor: str = "", reason: str = "") -> Schedule:
        """Let it run again, from now on."""
        return self._switched(name, "enable", tenant, reason)

    def disable(self, name: str, *, tenant: str | None = None, actor: str = "", reason: str = "") -> Schedule:
        """Let it make no more jobs."""
        return self._switched(name, "disable", tenant, reason)

    def delete(self, name: str, *, tenant: str | None = None, actor: str = "", reason: str = "") -> None:
        """Remove it; the jobs it has made stay."""
        self._http.delete(_path(name), {"tenant": tenant, "reason": reason or None})

    def run(self, name: str, *, tenant: str | None = None, actor: str = "", reason: str = "") -> Job:
        """Make a job of it now, beside its ticks."""
        answer = self._http.post(f"{_path(name)}/run", {"reason": reason}, query={"tenant": tenant})
        return read(lambda: values.job_from(answer["job"]))

    def _switched(self, name: str, act: str, tenant: str | None, reason: str) -> Schedule:
        answer = self._http.post(f"{_path(name)}/{act}", {"reason": reason}, query={"tenant": tenant})
        return read(lambda: values.schedule_from(answer["schedule"]))


def _events(answer: dict[str, Any]) -> list[Event]:
    tenant = answer["schedule"]["tenant"]
    subject = subject_of_schedule(tenant, answer["schedule"]["name"])
    return [values.event_from(event, subject, tenant) for event in answer["events"]]


def _path(name: str) -> str:
    return f"/schedules/{segment(name)}"
