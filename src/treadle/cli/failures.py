"""`treadle failures`: what went wrong, by kind."""

from contextlib import closing
from typing import Annotated

import typer
from rich.text import Text

from treadle.app.reading import past_from
from treadle.app.views import failures_view
from treadle.cli import options
from treadle.cli.discovery import find_target
from treadle.cli.jobs import Before, OfQueue, OfTask, Since
from treadle.cli.terminal import age, clock, coloured, document, preview, safe, say

MESSAGE = 300  # characters of a message that are shown


def failures(
    app: options.App = None,
    url: options.Url = None,
    task: OfTask = None,
    queue: OfQueue = None,
    tenant: options.OfTenant = None,
    since: Since = None,
    before: Before = None,
    cursor: Annotated[str | None, typer.Option("--cursor", help="Go on with jobs that failed earlier.")] = None,
    as_json: options.Json = False,
) -> None:
    """Group jobs that failed or will be tried again by what went wrong, most jobs first.

    Errors are of one kind if they have the same type, the same message but for numbers, ids, mail addresses and quoted
    values, and rose in the same function of your code. The number of a kind is its fingerprint: `treadle jobs list
    --fingerprint` and `treadle jobs retry --fingerprint` take it. It looks at the 2,000 latest to fail, and at 2,000
    jobs that wait.
    """
    times = {"since": past_from(since, "--since"), "before": past_from(before, "--before")}
    with closing(find_target(app, url)) as store:
        found = store.failures(
            task=task, queue=queue, tenant=tenant, since=times["since"], before=times["before"], cursor=cursor
        )
    if as_json:
        document(failures_view(found))
        return
    if not found.groups:
        say("no failures")
    for group in found.groups:
        numbers = f"{group.failed:,} failed" + f", {group.retrying:,} to be tried again" * bool(group.retrying)
        say(Text.assemble(group.fingerprint, "  ", coloured("failed", numbers), f"  {safe(group.type or 'no error')}"))
        if group.message:
            say(f"    {preview(group.message, MESSAGE)}")
        where = f" in {safe(group.frame)}" if group.frame else ""
        tasks, queues = safe(", ".join(group.tasks)), safe(", ".join(group.queues))
        say(Text(f"    task {tasks}{where}, queue {queues}", "dim"))
        span = f"first {age(group.first_seen, found.at)}, last {age(group.last_seen, found.at)}"
        say(Text(f"    {span}; such as job {group.job_id}", "dim"))
    if found.more:
        say(Text("more jobs wait than were looked at", "dim"))
    if found.cursor is not None:
        back_to = f" before {clock(found.back_to)}" if found.back_to else ""
        say(Text(f"more{back_to}: --cursor {found.cursor}", "dim"))
