"""Queues as rows of a page: how each does, who serves it, since when it fails, and its last half hour in bars."""

from datetime import timedelta

from treadle.server.caller import Caller
from treadle.server.dashboard.holding import holding
from treadle.server.dashboard.words import Row, moment

LATE = timedelta(minutes=1)
NEED = ("failing", "late", "paused", "on time")  # the states of a queue, what needs somebody first
HEIGHT = 20  # of a small chart, in its own units


def queue_rows(caller: Caller, found: Row) -> list[Row]:
    """The queues, those that need somebody first."""
    rates = {rate["queue"]: rate for rate in found["rates"]}
    rows = []
    for group in found["queues"]:
        there = [one for one in found["pauses"] if one["queue"] in (None, group["queue"])]
        whole = holding(there, {"queue": group["queue"], "tenant": caller.who.tenant})
        serving = [one for one in found["workers"] if group["queue"] in one["queues"] and not one["stopping"]]
        row = {
            **group,
            "later": group["waiting"] - group["due"],
            "rate": rates.get(group["queue"]),
            "pause": whole[0] if whole else None,
            "partly": [one for one in there if one not in whole and one["queue"] is not None],
            "serving": [one["name"] for one in serving],
            "full": bool(serving) and all(one["running"] >= one["concurrency"] for one in serving),
            "unserved": caller.who.whole and not serving,
        }
        row["word"] = _word(row, found["at"])
        row["since"] = row["rate"]["failing_since"] if row["word"] == "failing" and row["rate"] else None
        row["chart"] = _chart(row["rate"])
        rows.append(row)
    return sorted(rows, key=_need)


def _need(row: Row) -> tuple[int, str, str]:
    """Where a queue stands among the others; of late ones the one that waits longest is first."""
    return NEED.index(row["word"]), (row["oldest"] or "~") if row["word"] == "late" else "", row["queue"]


def _word(row: Row, at: str) -> str:
    """How a queue does."""
    if row["pause"]:
        return "paused"
    rate = row["rate"]
    bad = rate["failed"] + rate["retrying"] if rate else row["failed"]
    done = rate["ended"] - rate["failed"] if rate else row["succeeded"]
    if bad and bad >= done:
        return "failing"
    if row["due"] and (row["unserved"] or _waited(row, at) >= LATE):
        return "late"
    return "on time"


def _waited(row: Row, at: str) -> timedelta:
    oldest, now = moment(row["oldest"]), moment(at)
    return now - oldest if now and oldest else timedelta(0)


def _chart(rate: Row | None) -> Row | None:
    """Bars of the last 30 minutes, done and failed above each other, as two paths."""
    if rate is None:
        return None
    most = max([1, *map(sum, zip(rate["done"], rate["bad"], strict=True))])
    done, bad = [], []
    for place, (good, failed) in enumerate(zip(rate["done"], rate["bad"], strict=True)):
        up, over = round(HEIGHT * good / most, 1), round(HEIGHT * failed / most, 1)
        if up:
            done.append(f"M{3 * place} {HEIGHT}v-{up}h2.4v{up}z")
        if over:
            bad.append(f"M{3 * place} {round(HEIGHT - up, 1)}v-{over}h2.4v{over}z")
    return {"done": "".join(done), "bad": "".join(bad), "width": 3 * len(rate["done"])}
