"""What the tests of schedules share: a task, a schedule of every hour, a look of a scheduler, what was made."""

from treadle import Retry, Task, Treadle
from treadle.engines.contract import Engine
from treadle.model.records import Schedule
from treadle.schedules.firing import Scheduler


def register(app: Treadle) -> Task:
    def greet(name: str = "Ada") -> str:
        return f"hello {name}"

    retry = Retry(max_attempts=4, base=1, cap=None, jitter=0)
    return app.register("greet", greet, queue="mail", priority=3, timeout="5m", retry=retry, version=2)


def hourly(app: Treadle, name: str = "hourly", **said: object) -> Schedule:
    """A schedule of every full hour; the clock of a test begins at noon."""
    return app.schedules.create(name, "greet", **{"cron": "0 * * * *", **said})


def fire(app: Treadle | Engine, name: str = "s1", **options: object) -> None:
    """One look of a scheduler at what is due."""
    Scheduler(getattr(app, "engine", app), name, **options).run_due()


def made(app: Treadle, schedule: str | None = None) -> list[str]:
    """The nominal times of the jobs that schedules made, oldest first."""
    jobs = [job for job in app.find(limit=500).jobs if schedule in (None, job.schedule)]
    return sorted(f"{job.due_at:%d %H:%M}" for job in jobs)


def traces(app: Treadle) -> tuple[object, ...]:
    """Everything that is there of schedules: equal before and after means that nothing was written."""
    return app.schedules.list(), app.audit(limit=500), app.count()
