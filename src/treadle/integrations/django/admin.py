"""Jobs and queues in Django's admin: to look at, and to retry, cancel, pause and resume. Nothing is edited there.

The pages ask `app`, not a table: so they are as quick beside a million jobs, and every act is in the audit trail.
"""

import json
from collections.abc import Callable, Iterable
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.html import format_html

from treadle.errors import JobNotFound, TreadleError
from treadle.integrations.django import app
from treadle.integrations.django.admin_pages import JobList, facts_of, queue_rows
from treadle.integrations.django.models import Job, Queue

View = Callable[..., HttpResponse]


class ReadAndActAdmin(admin.ModelAdmin):
    """A page of ours in the admin: no adding, no deleting, no form over a row."""

    def has_add_permission(self, request: HttpRequest) -> bool:  # noqa: ARG002
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002
        return False

    def get_urls(self) -> list[Any]:
        """The list, and no other page of Django's own."""
        name = f"{self.opts.app_label}_{self.opts.model_name}_changelist"
        return [path("", self._page(self.changelist_view), name=name)]

    def _page(self, view: View) -> View:
        """A view for those who may look; each act is a transaction of its own, whatever ATOMIC_REQUESTS says."""

        def seen(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            if not self.has_view_permission(request):
                raise PermissionDenied
            if request.method == "POST" and not self.has_change_permission(request):
                raise PermissionDenied
            if request.method not in ("GET", "HEAD", "POST"):
                return HttpResponseNotAllowed(["GET", "POST"])
            return view(request, *args, **kwargs)

        guarded: View = transaction.non_atomic_requests(self.admin_site.admin_view(seen))
        return guarded

    def _rendered(self, request: HttpRequest, template: str, title: str, **context: Any) -> HttpResponse:
        page = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": title,
            "may_act": self.has_change_permission(request),
            **context,
        }
        return TemplateResponse(request, f"admin/treadle/{template}.html", page)


@admin.register(Job)
class JobAdmin(ReadAndActAdmin):
    """The jobs: filtered, one by one with payload, error and history, retried and cancelled."""

    def get_urls(self) -> list[Any]:
        name = f"{self.opts.app_label}_{self.opts.model_name}_change"
        return [*super().get_urls(), path("<uuid:job_id>/", self._page(self.change_view), name=name)]

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:  # noqa: ARG002
        """The list; a POST does one act to the jobs that are ticked."""
        if request.method == "POST":
            self._act(request, request.POST.getlist("job"))
            return HttpResponseRedirect(request.get_full_path())
        jobs = JobList(request.GET)
        try:
            jobs.read()
        except TreadleError as error:
            messages.error(request, str(error))
        return self._rendered(request, "jobs", "Jobs", jobs=jobs)

    def change_view(self, request: HttpRequest, job_id: Any, *_: Any, **__: Any) -> HttpResponse:
        """One job; a POST does one act to it."""
        if request.method == "POST":
            self._act(request, [str(job_id)])
            return HttpResponseRedirect(request.get_full_path())
        try:
            whole = app.get(str(job_id))
            job = app.masked(whole)
        except JobNotFound as error:
            messages.warning(request, str(error))
            return HttpResponseRedirect(reverse("admin:treadle_job_changelist"))
        shown = {
            "job": job,
            "label": job.label(app.engine.now()),
            "facts": facts_of(job),
            "payload": _pretty(job.payload),
            "result": None if job.result_json is None else _pretty(job.result),
            "obstacles": app.why(job.id),
            "events": app.masked_events(whole, app.events(job.id)),
        }
        return self._rendered(request, "job", f"{job.task}", **shown)

    def _act(self, request: HttpRequest, ids: Iterable[str]) -> None:
        act = {"retry": app.retry, "cancel": app.cancel}.get(request.POST.get("act", ""))
        if act is None:
            messages.warning(request, "No action selected.")
            return
        done = 0
        for id in ids:
            try:
                job = act(id, actor=_actor(request), reason=request.POST.get("reason", ""))
                done += 1
            except TreadleError as error:
                messages.warning(request, f"{id}: {error}")
        if done == 1:
            link = reverse("admin:treadle_job_change", args=[job.id])
            messages.success(request, format_html('<a href="{}">{}</a> is {} now.', link, job.task, _standing(job)))
        elif done:
            messages.success(request, f"{done} jobs: {request.POST['act']} done.")


@admin.register(Queue)
class QueueAdmin(ReadAndActAdmin):
    """The queues: how much waits in each, paused and resumed; and the workers that serve them."""

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:  # noqa: ARG002
        """Every queue; a POST pauses or resumes one."""
        if request.method == "POST":
            self._act(request)
            return HttpResponseRedirect(request.get_full_path())
        shown: dict[str, Any] = {}
        try:
            shown["rows"], shown["others"] = queue_rows()
            shown["workers"] = app.workers()
        except TreadleError as error:
            messages.error(request, str(error))
        return self._rendered(request, "queues", "Queues", **shown)

    def _act(self, request: HttpRequest) -> None:
        queue, reason = request.POST.get("queue", ""), request.POST.get("reason", "")
        try:
            if request.POST.get("act") == "pause":
                app.pause(queue=queue, reason=reason, actor=_actor(request))
                messages.success(request, f"Queue {queue} is paused. What runs, runs on.")
            else:
                app.resume(queue=queue, reason=reason, actor=_actor(request))
                messages.success(request, f"Queue {queue} goes on.")
        except TreadleError as error:
            messages.warning(request, str(error))


def _actor(request: HttpRequest) -> str:
    """Who acts, as the audit trail names them."""
    return f"admin:{request.user.get_username()}"[:150]


def _standing(job: Any) -> str:
    return "asked to stop" if job.cancel_requested and not job.state.final else str(job.label(app.engine.now()))


def _pretty(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
