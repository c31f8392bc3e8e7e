"""A worker in a process of its own, given URL FOLDER OPTIONS; its handlers leave marks in the folder."""

import asyncio
import json
import os
import sys
import time
from pathlib import Path

from treadle import Context, Treadle


def tasks(app: Treadle, folder: Path) -> None:
    """The tasks, each with a way to be seen and to be told to go on."""

    @app.task
    def nap(ctx: Context, seconds: float) -> str:
        (folder / f"started-{ctx.attempt}").touch()
        time.sleep(seconds)
        return "rested"

    @app.task
    async def nap_on_the_loop(ctx: Context, seconds: float) -> str:
        (folder / f"started-{ctx.attempt}").touch()
        await asyncio.sleep(seconds)
        return "rested"

    @app.task
    def hold(ctx: Context) -> int:
        (folder / f"started-{ctx.attempt}").touch()
        while not (folder / "go").exists():
            time.sleep(0.005)
        (folder / f"ending-{ctx.attempt}").touch()
        return os.getpid()

    @app.task
    def mail(ctx: Context, policy: str) -> object:
        def post() -> str:
            (folder / f"posted-{ctx.attempt}").touch()
            while not (folder / "answered").exists():
                time.sleep(0.005)
            return f"posted by attempt {ctx.attempt}"

        answer = ctx.once("post", post, on_ambiguous=policy)
        (folder / f"kept-{ctx.attempt}").touch()
        while not (folder / "go").exists():
            time.sleep(0.005)
        return answer

    @app.task
    def die(ctx: Context) -> None:
        (folder / f"started-{ctx.attempt}").touch()
        os._exit(9)


def main(url: str, folder: str, options: str) -> None:
    app = Treadle(url)
    tasks(app, Path(folder))
    app.run_worker(**json.loads(options))
    (Path(folder) / "stopped").touch()


if __name__ == "__main__":
    main(*sys.argv[1:])
