"""Two users, two zones and the night of a clock change: see it now, with a clock that you move and no network."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from jobs import register
from slack import Slack

from treadle import Treadle
from treadle.profiles import companion
from treadle.testing import FakeClock, fakes, run_until_idle

USERS = {"Ada": "America/New_York", "Grace": "Asia/Tokyo"}


def two_mornings() -> None:
    clock = FakeClock(datetime(2026, 3, 7, 15, tzinfo=UTC))  # on Sunday, 8 March the clocks of New York go forward
    app = Treadle("sqlite:///:memory:", clock=clock, profile=companion.PROFILE)
    with fakes.slack(clock=clock) as workspace:
        for name, tz in USERS.items():
            workspace.add_user(name, tz=tz)
        slack = Slack(workspace.base_url, workspace.token)
        register(app, slack, "general")
        run_until_idle(app)  # as a worker that starts: it registers the schedule
        for hour in range(48):
            slack.call("chat.postMessage", channel="general", text=f"note {hour + 1}")
            seen = len(workspace.messages)
            clock.advance(hours=1)
            run_until_idle(app)
            for message in workspace.messages[seen:]:
                name = message["text"].partition(", ")[2].partition(".")[0]
                local = clock.now().astimezone(ZoneInfo(USERS[name]))
                print(f"{local:%a %d %b, %H:%M %z}: {message['text'].splitlines()[0]}")
    app.close()


if __name__ == "__main__":
    two_mornings()
