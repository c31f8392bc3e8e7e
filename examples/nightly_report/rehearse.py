"""What becomes of missed nights? See it now, with a clock that you move and in a folder that is thrown away."""

import os
import sqlite3
import tempfile
from contextlib import closing
from datetime import UTC, datetime

from report import DATABASE, TABLES, nightly

from treadle import Treadle
from treadle.testing import FakeClock, run_until_idle


def rehearse() -> None:
    clock = FakeClock(datetime(2026, 10, 23, 12, tzinfo=UTC))  # a Friday; on Sunday the clocks go back
    app = nightly(Treadle(f"sqlite:///{DATABASE}", clock=clock))
    run_until_idle(app)  # as a worker that starts: it registers the schedule
    clock.advance(days=3)  # then nobody works until Monday
    done = [job for job in run_until_idle(app) if job.task == "nightly_report"]
    for tick in sorted({job.tick for job in done if job.tick}):
        reports = sorted(job.payload["customer"] for job in done if job.tick == tick)
        print(f"{tick:%a %d %b, %H:%M} UTC: {', '.join(reports)}")
    app.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        with closing(sqlite3.connect(DATABASE)) as shop:
            shop.executescript(TABLES)
        rehearse()
