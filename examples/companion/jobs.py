"""The two job types: `user_sync` plans the next summary of a user, and `daily_summary` posts it once per date."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from functools import cache, lru_cache
from typing import Any
from zoneinfo import ZoneInfo

from slack import Slack
from summary import MORNING, Summary, line_of, next_morning, text_of

from treadle import Cancelled, Context, Snooze, Treadle, Unique

LATEST = timedelta(hours=5)  # after the morning: for users who have moved since the summary was planned
ONCE_A_DATE = Unique("window", window="3d", on_conflict="replace")


def register(app: Treadle, slack: Slack, channel: str) -> None:
    """Register both types and the schedule with an app: the one of companion.py, or the one of mornings.py."""

    @lru_cache(maxsize=100)  # the users of a zone share it
    def lines_before(day: date, tz: str) -> list[str]:
        """The messages in the channel on the day before `day`, in this zone."""
        midnights = (datetime.combine(one, time(), ZoneInfo(tz)) for one in (day - timedelta(1), day))
        oldest, latest = (midnight.timestamp() for midnight in midnights)
        found = slack.pages("conversations.history", "messages", channel=channel, oldest=oldest, latest=latest)
        return [line_of(message) for message in found if "subtype" not in message][::-1]

    @app.task(unique=ONCE_A_DATE)
    def daily_summary(ctx: Context, summary: Summary) -> dict[str, Any]:
        token = f"{summary.user_id}#{summary.day}"

        @cache
        def direct() -> str:
            """The conversation with this user."""
            return str(slack.call("conversations.open", users=summary.user_id)["channel"]["id"])

        def find() -> str | None:
            """The message of this user and date, if it was posted."""
            oldest = datetime.combine(summary.day - timedelta(1), time(), UTC).timestamp()
            for message in slack.pages(
                "conversations.history", "messages", channel=direct(), oldest=oldest, include_all_metadata=True
            ):
                if message.get("metadata", {}).get("event_payload", {}).get("token") == token:
                    return str(message["ts"])
            return None

        def check_morning() -> None:
            """A user who has moved since gets the summary in the morning of the new zone, or not at all."""
            tz = slack.call("users.info", user=summary.user_id)["user"].get("tz") or summary.tz
            late = (ctx.job.claimed_at or datetime.now(UTC)) - datetime.combine(summary.day, MORNING, ZoneInfo(tz))
            if late < timedelta():
                raise Snooze(-late)
            if tz != summary.tz and late > LATEST:
                raise Cancelled(f"user {summary.user_id} has moved to {tz}, where the morning of this day is over")

        def post() -> str:
            check_morning()
            text = text_of(summary, lines_before(summary.day, summary.tz))
            metadata = {"event_type": "daily_summary", "event_payload": {"token": token}}
            return find() or str(slack.call("chat.postMessage", channel=direct(), text=text, metadata=metadata)["ts"])

        return {"ts": ctx.once("post", post, look=find)}

    def users() -> Iterator[dict[str, str]]:
        for user in slack.pages("users.list", "members"):
            is_person = not user.get("deleted") and not user.get("is_bot") and user["id"] != "USLACKBOT"
            if is_person and user.get("tz"):  # without a zone there is no morning
                yield {"user_id": user["id"], "real_name": user["profile"]["real_name"], "tz": user["tz"]}

    @app.task(cron="0 * * * *", for_each=users)
    def user_sync(ctx: Context, user_id: str, real_name: str, tz: str) -> dict[str, str]:
        due = next_morning(ctx.job.claimed_at or datetime.now(UTC), tz)
        summary = Summary(user_id=user_id, real_name=real_name, day=due.date(), tz=tz)
        key = f"scheduled-job#summary#{user_id}#{summary.day}"  # for one date there is one job, whoever plans it
        daily_summary.using(key=key, run_after=due.astimezone(UTC)).enqueue(summary)
        return {"tz": tz, "next": due.isoformat()}
