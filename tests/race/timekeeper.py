"""One process of a race for ticks, given URL NAME: it fires whatever is due until it is killed."""

import sys
import time

from treadle.engines import connect
from treadle.errors import EngineUnavailable
from treadle.schedules.firing import Scheduler


def main(url: str, name: str) -> None:
    engine = connect(url)
    engine.open()
    scheduler = Scheduler(engine, name, interval=0.05)
    print("ready", flush=True)
    while True:
        try:
            scheduler.run_due()
        except EngineUnavailable:
            continue
        time.sleep(max(0.0, scheduler.due_at - time.monotonic()))


if __name__ == "__main__":
    main(*sys.argv[1:])
