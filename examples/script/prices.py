"""Work through a list with jobs. Stop it at any moment and start it again: it goes on where it was."""

import asyncio

from treadle import Context, GiveUp, Retry, Treadle

app = Treadle("sqlite:///prices.db")  # a file in this folder: nothing to install, nothing to start

CENTS = {"apple": 120, "banana": 90, "cherry": 450, "fig": 310, "grape": 280, "pear": 150, "plum": 210}


@app.task(retry=Retry(max_attempts=3, base=0, jitter=0))
async def fetch_price(ctx: Context, fruit: str) -> int:
    print(f"asking for the price of {fruit}")
    await asyncio.sleep(0.5)  # stands for a request to a shop
    if fruit not in CENTS:
        raise GiveUp(f"nobody sells {fruit}")  # no further attempt can help
    if fruit == "fig" and ctx.attempt == 1:
        raise ConnectionError("the shop did not answer")  # any other error is tried again
    return CENTS[fruit]


def main() -> None:
    # The key makes a second start harmless: it finds the jobs of the first one and makes no others.
    jobs = [fetch_price.using(key=fruit, unique="ever").enqueue(fruit) for fruit in [*CENTS, "unicorn"]]
    app.run_worker(until_idle=True, concurrency=2)
    for job in [app.get(job.id) for job in jobs]:
        outcome = job.result or (job.error.message if job.error else "")
        print(f"{job.payload['fruit']:8}  {job.state:9}  attempt {job.attempt}  {outcome}".rstrip())


if __name__ == "__main__":
    main()
