"""Text that would become a part of a page if one were careless, in every place where people and jobs can write."""

from contextlib import suppress
from datetime import timedelta
from typing import Any

from treadle import Context, Retry, Treadle
from treadle.engines.values import OVERWRITE
from treadle.errors import TreadleError
from treadle.model.records import Minute, WorkerInfo
from treadle.model.stats import Counts, hour_of
from treadle.testing import FakeClock, run_until_idle

CORPUS = [
    "<script>window.pwned=1</script>",
    "</script><script>window.pwned=1</script>",
    "<img src=x onerror=window.pwned=1>",
    '"><img src=x onerror=window.pwned=1>',
    "'><img src=x onerror=window.pwned=1>",
    '" onmouseover="window.pwned=1" x="',
    "' onfocus='window.pwned=1' autofocus='",
    "x onclick=window.pwned=1 x=",
    "` onload=window.pwned=1",
    "<svg/onload=window.pwned=1>",
    "</svg><svg onload=window.pwned=1>",
    "<iframe src=javascript:window.pwned=1></iframe>",
    "javascript:window.pwned=1",
    "JaVaScRiPt://%0awindow.pwned=1",
    "data:text/html,<script>window.pwned=1</script>",
    "//evil.example/x",
    "\\\\evil.example",
    "https://evil.example/<b>",
    "</title><b class=pwned>",
    "</textarea><b class=pwned>",
    "</pre></code><b class=pwned>",
    "</select></option><b class=pwned>",
    "</td></tr></table><b class=pwned>",
    "--><b class=pwned>",
    "<!--",
    "]]><b class=pwned>",
    "<style>*{display:none}</style>",
    "<base href=//evil.example>",
    "<meta http-equiv=refresh content='0;url=//evil.example'>",
    "<form action=//evil.example><input name=token>",
    "<a href=javascript:window.pwned=1>x</a>",
    "<math><mtext><b class=pwned></math>",
    "<details open ontoggle=window.pwned=1>",
    "{{ 7 * 7 }}{% raw %}",
    "${window.pwned=1}",
    "&lt;script&gt;window.pwned=1&lt;/script&gt;",
    "&#60;b class=pwned&#62;",
    "\u003cb class=pwned\u003e\ufeff",
    "＜script＞window.pwned=1＜/script＞",
    "<b class=pwned\u2028>",
    "%3Cscript%3Ewindow.pwned=1%3C/script%3E",
    "a/../../b?c=d&e=f#<b class=pwned>",
    "'; window.pwned=1; //",
]


def poison(app: Treadle, clock: FakeClock, texts: list[str]) -> None:
    """Each text wherever people and jobs can write: names, payloads, results, errors, reasons, notes."""

    @app.task(retry=Retry(max_attempts=1))
    def breaks(text: str) -> None:
        raise type(text, (Exception,), {})(text)

    @app.task(retry=Retry(max_attempts=9, base=3600))
    def breaks_again(text: str) -> None:
        raise ValueError(text)

    @app.task
    def returns(ctx: Context, payload: Any) -> Any:
        ctx.progress(0.5, str(payload))
        return {str(payload): [payload]}

    for text in texts:
        place = {"tenant": text, "lane": text, "key": text}
        app.enqueue("breaks", {"text": text}, **place)
        app.enqueue("breaks_again", {"text": text}, tenant=text)
        app.enqueue("returns", text, tenant=text, lane=text)
        clock.advance(seconds=1)
    run_until_idle(app)
    for text in texts:
        _wait(app, clock, text)


def _wait(app: Treadle, clock: FakeClock, text: str) -> None:
    """What nobody has run yet, and who stands in the way."""
    with suppress(TreadleError):  # some texts are no names
        app.enqueue(text, {text: text}, checked=False, queue=text, tenant=text, lane=text, key=f"{text} again")
    job = app.enqueue("returns", {"note": text}, run_after="1h")
    app.cancel(job.id, actor=text, reason=text)
    with suppress(TreadleError):
        app.pause(queue=text, reason=text, actor=text, until=timedelta(hours=3))
    with suppress(TreadleError):
        app.schedules.create(text, "returns", {text: text}, every="1h", queue=text, lane=text, actor=text, reason=text)
        app.schedules.disable(text, actor=text, reason=text)
    with suppress(TreadleError):
        app.schedules.create(f"{text} tenant", text, text, tenant=text, cron="0 3 * * *", checked=False, reason=text)
    now = clock.now()
    app.engine.save(
        WorkerInfo(text, text, 7, [text], [text], {text: 1, "returns": 1}, 8, 1, False, now, now, 3600.0),
        before=OVERWRITE,
    )
    counts = Counts()
    counts.note("failed", 1.0, 1.0)
    app.engine.save(Minute(hour_of(now), now.minute, text, {text: {text: counts.data()}}), before=OVERWRITE)
