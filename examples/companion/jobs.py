"""The two job types: `user_sync` plans the next summary of a user, and `daily_summary` posts it once per date."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from pydantic import BaseModel, ConfigDict
from slack import Slack

from treadle import Context, GiveUp, Treadle, Unique

MORNING = time(7)  # in the user's time zone
ONCE_A_DATE = Unique("window", window="3d", on_conflict="replace")
LONGEST = 40  # messages that a summary names


class Summary(BaseModel):
    """The payload of `daily_summary`: all it needs, so that it says the same however late it runs."""

    model_config = ConfigDict(extra="forbid")
    user_id: str
    name: str
    day: date
    tz: str


def next_morning(now: datetime, tz: str) -> datetime:
    """The first morning after `now` in this zone; `now` is in UTC."""
    zone = ZoneInfo(tz)
    day = now.astimezone(zone).date()
    today, tomorrow = (datetime.combine(day + timedelta(days), MORNING, zone) for days in (0, 1))
    return today if today > now else tomorrow


def register(app: Treadle, slack: Slack, channel: str) -> None:
    """Register both types and the schedule with an app: the one of companion.py, or the one of mornings.py."""

    @app.task(unique=ONCE_A_DATE)
    def daily_summary(ctx: Context, summary: Summary) -> dict[str, Any]:
        zone = ZoneInfo(summary.tz)
        yesterday = summary.day - timedelta(1)
        start, end = (datetime.combine(day, time(), zone).timestamp() for day in (yesterday, summary.day))
        direct = slack.call("conversations.open", users=summary.user_id)["channel"]["id"]
        token = f"{summary.user_id}#{summary.day}"

        def find() -> str | None:
            """The message of this user and date, if it was posted."""
            for message in slack.pages(
                "conversations.history", "messages", channel=direct, oldest=start, include_all_metadata=True
            ):
                if message.get("metadata", {}).get("event_payload", {}).get("token") == token:
                    return str(message["ts"])
            return None

        def post() -> str:
            said = slack.pages("conversations.history", "messages", channel=channel, oldest=start, latest=end)
            lines = [f"• {message['text']}" for message in said if "subtype" not in message][::-1]
            text = f"Good morning, {summary.name}. On {yesterday:%A, %d %B} there were {len(lines)} messages."
            metadata = {"event_type": "daily_summary", "event_payload": {"token": token}}
            whole = "\n".join([text, *lines[:LONGEST]])
            return find() or str(slack.call("chat.postMessage", channel=direct, text=whole, metadata=metadata)["ts"])

        return {"ts": ctx.once("post", post, look=find)}

    def users() -> Iterator[dict[str, str]]:
        for user in slack.pages("users.list", "members"):
            if not user.get("deleted") and not user.get("is_bot") and user["id"] != "USLACKBOT":
                yield {"user_id": user["id"]}

    @app.task(cron="0 * * * *", for_each=users)
    def user_sync(ctx: Context, user_id: str) -> dict[str, str]:
        user = slack.call("users.info", user=user_id)["user"]
        if not user.get("tz"):
            raise GiveUp(f"user {user_id} has no time zone; set it in the profile on Slack")
        due = next_morning(ctx.job.claimed_at or datetime.now(UTC), user["tz"])
        summary = Summary(user_id=user_id, name=user["profile"]["real_name"], day=due.date(), tz=user["tz"])
        key = f"scheduled-job#summary#{user_id}#{summary.day}"  # for one date there is one job, whoever plans it
        daily_summary.using(key=key, run_after=due.astimezone(UTC)).enqueue(summary)
        return {"tz": summary.tz, "next": due.isoformat()}
