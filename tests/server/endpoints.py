"""Every endpoint, with the scope it needs and a request that it answers. Tests of all endpoints walk this table.

`test_scopes.py` compares it with the routes of the server, so that a new endpoint cannot be forgotten here.
"""

from typing import Any, NamedTuple

from fastapi import FastAPI
from fastapi.routing import iter_route_contexts

from treadle import Treadle
from treadle.server.caller import SIGNED_IN
from treadle.server.dashboard.page import PageRoute

PUBLIC = "public"
"""Instead of a scope: whoever asks is answered."""

SAFE = ("GET", "HEAD", "OPTIONS")


class Endpoint(NamedTuple):
    """One method of one address. `status` is that of the answer to its example."""

    method: str
    path: str
    scope: str
    body: Any = None
    status: int = 200
    query: dict[str, Any] = {}  # noqa: RUF012 - never changed

    def url(self, place: "Place") -> str:
        """The address with the ids and names of what is there."""
        return self.path.format(**place._asdict())

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class Place(NamedTuple):
    """What is in the store for the examples: a job that waits, one that has failed, a schedule."""

    job_id: str
    name: str
    failed: str = ""
    schedule_id: str = ""


V1 = "/api/v1"
NEW_JOB = {"task": "greet", "payload": {"name": "Ada"}}
NEW_SCHEDULE = {"name": "another", "task": "greet", "payload": {"name": "Ada"}, "every": "1h"}
BULK = {"action": "cancel", "filter": {"queue": "nowhere"}}
ADMIN_SCHEDULE = {"name": "another", "job_type": "greet", "payload": {"name": "Ada"}, "cron_expr": "0 3 * * *"}

ENDPOINTS = [
    Endpoint("GET", f"{V1}/jobs", "read"),
    Endpoint("POST", f"{V1}/jobs", "enqueue", NEW_JOB, 201),
    Endpoint("POST", f"{V1}/jobs/bulk", "operate", BULK),
    Endpoint("GET", f"{V1}/jobs/count", "read"),
    Endpoint("GET", f"{V1}/jobs/{{job_id}}", "read"),
    Endpoint("GET", f"{V1}/jobs/{{job_id}}/why", "read"),
    Endpoint("POST", f"{V1}/jobs/{{job_id}}/retry", "operate", {}, 409),
    Endpoint("POST", f"{V1}/jobs/{{job_id}}/run-now", "operate", {}, 409),
    Endpoint("PATCH", f"{V1}/jobs/{{job_id}}", "operate", {"priority": 1}),
    Endpoint("POST", f"{V1}/jobs/{{job_id}}/cancel", "operate", {}),
    Endpoint("DELETE", f"{V1}/jobs/{{job_id}}", "operate"),
    Endpoint("GET", f"{V1}/schedules", "read"),
    Endpoint("POST", f"{V1}/schedules", "operate", NEW_SCHEDULE, 201),
    Endpoint("POST", f"{V1}/schedules/check", "read", NEW_SCHEDULE),
    Endpoint("GET", f"{V1}/schedules/{{name}}", "read"),
    Endpoint("PATCH", f"{V1}/schedules/{{name}}", "operate", {"priority": 1}),
    Endpoint("POST", f"{V1}/schedules/{{name}}/enable", "operate", {}),
    Endpoint("POST", f"{V1}/schedules/{{name}}/disable", "operate", {}),
    Endpoint("POST", f"{V1}/schedules/{{name}}/run", "operate", {}, 201),
    Endpoint("GET", f"{V1}/schedules/{{name}}/preview", "read"),
    Endpoint("DELETE", f"{V1}/schedules/{{name}}", "operate"),
    Endpoint("GET", f"{V1}/about", SIGNED_IN),
    Endpoint("GET", f"{V1}/status", "read"),
    Endpoint("GET", f"{V1}/stats", "read"),
    Endpoint("GET", f"{V1}/overview", "read"),
    Endpoint("GET", f"{V1}/doctor", "read"),
    Endpoint("GET", f"{V1}/cron", "read", query={"cron": "@daily"}),
    Endpoint("GET", f"{V1}/queues", "read"),
    Endpoint("GET", f"{V1}/failures", "read"),
    Endpoint("GET", f"{V1}/tasks", "read"),
    Endpoint("GET", f"{V1}/workers", "read"),
    Endpoint("POST", f"{V1}/workers/{{name}}/drain", "operate", {}, 409),
    Endpoint("GET", f"{V1}/pauses", "read"),
    Endpoint("POST", f"{V1}/pauses", "operate", {"queue": "nowhere"}, 201),
    Endpoint("POST", f"{V1}/pauses/resume", "operate", {"queue": "elsewhere"}, 409),
    Endpoint("GET", f"{V1}/audit", "read"),
    Endpoint("GET", f"{V1}/audit/verify", "read"),
    Endpoint("GET", f"{V1}/costs", "read"),
    Endpoint("GET", f"{V1}/budgets", "read"),
    Endpoint("GET", f"{V1}/tokens", "admin"),
    Endpoint("POST", f"{V1}/tokens", "admin", {"label": "ci", "scopes": ["read"]}, 201),
    Endpoint("POST", f"{V1}/tokens/{{name}}/revoke", "admin", {}, 409),
    Endpoint("GET", f"{V1}/events", "read"),
    Endpoint("GET", f"{V1}/session", "read"),
    Endpoint("POST", f"{V1}/session", PUBLIC, {"token": "treadle_wrong"}, 401),
    Endpoint("DELETE", f"{V1}/session", PUBLIC, None, 204),
    Endpoint("GET", f"{V1}/openapi.json", PUBLIC),
    Endpoint("GET", "/healthz", PUBLIC),
    Endpoint("GET", "/readyz", PUBLIC),
    Endpoint("GET", "/metrics", "read"),
]
ADMIN = "/api/admin"
ADMIN_ENDPOINTS = [
    Endpoint("GET", f"{ADMIN}/jobs", "admin"),
    Endpoint("GET", f"{ADMIN}/jobs/stats", "admin"),
    Endpoint("GET", f"{ADMIN}/jobs/{{job_id}}", "admin"),
    Endpoint("POST", f"{ADMIN}/jobs/{{job_id}}/retry", "admin", None, 409),
    Endpoint("POST", f"{ADMIN}/jobs/{{job_id}}/cancel", "admin"),
    Endpoint("GET", f"{ADMIN}/schedules", "admin"),
    Endpoint("POST", f"{ADMIN}/schedules", "admin", ADMIN_SCHEDULE, 201),
    Endpoint("PUT", f"{ADMIN}/schedules/{{schedule_id}}", "admin", {"enabled": False}),
    Endpoint("POST", f"{ADMIN}/schedules/{{schedule_id}}/enable", "admin"),
    Endpoint("POST", f"{ADMIN}/schedules/{{schedule_id}}/disable", "admin"),
    Endpoint("DELETE", f"{ADMIN}/schedules/{{schedule_id}}", "admin"),
]
"""Of a server that has `/api/admin`."""
STREAM = next(one for one in ENDPOINTS if one.path.endswith("/events"))
CHANGES = [one for one in ENDPOINTS if one.method not in SAFE]


def place_in(app: Treadle) -> Place:
    """Put into the store what the examples are about."""
    schedule = app.schedules.create("nightly", "greet", {"name": "Ada"}, every="1h")
    return Place(app.enqueue("greet", {"name": "Ada"}).id, "nightly", schedule_id=schedule.id)


def routes_of(api: FastAPI, *, pages: bool = False) -> dict[tuple[str, str], str]:
    """The routes of the API, or of the pages, by method and path, each with the scope that it says it needs."""
    found = {}
    for route in iter_route_contexts(api.routes):
        if is_page(route) != pages:
            continue
        dependant = getattr(route, "dependant", None)
        calls = [one.call for one in dependant.dependencies] if dependant else []
        scopes = [scope for call in calls if (scope := getattr(call, "scope", None))]
        for method in set(route.methods or ()) - {"HEAD"}:
            found[method, route.path] = scopes[0] if scopes else PUBLIC
    return found


def is_page(route: Any) -> bool:
    """Whether a route is one of the dashboard."""
    return isinstance(getattr(route, "original_route", route), PageRoute)
