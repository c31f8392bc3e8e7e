"""A companion on DynamoDB: in the morning of each user it sums up what was said the day before."""

import os

import sentry_sdk
from jobs import register
from slack import Slack

from treadle import Treadle
from treadle.integrations.sentry import instrument
from treadle.profiles import companion


def setting(name: str, example: str) -> str:
    value = os.environ.get(name, "").strip()  # a file that it was read from may end with a newline
    if not value:
        raise SystemExit(f"{name} is not set; write for example {name}={example}")
    if not value.isascii() or not value.isprintable():
        raise SystemExit(f"{name} holds a character that is not printable ASCII; copy it again")
    return value


app = Treadle(
    setting("COMPANION_STORE", "dynamodb://companion?region=eu-central-1"), profile=companion.PROFILE, auto_migrate=True
)
sentry_sdk.init(os.environ.get("SENTRY_DSN", "").strip())  # without one, nothing is sent
instrument(app, redact={"*": ["real_name"]})  # the names of users stay here
slack = Slack(os.environ.get("SLACK_URL", "https://slack.com/api/"), setting("SLACK_TOKEN", "xoxb-…"))
register(app, slack, setting("SLACK_CHANNEL", "C0123456789"))
