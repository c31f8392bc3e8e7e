"""A companion on DynamoDB: in the morning of each user it sums up what was said the day before."""

import os

import sentry_sdk
from jobs import register
from slack import Slack

from treadle import Treadle
from treadle.integrations.sentry import instrument
from treadle.profiles import companion


def setting(name: str, example: str) -> str:
    if value := os.environ.get(name):
        return value
    raise SystemExit(f"{name} is not set; write for example {name}={example}")


app = Treadle(
    setting("COMPANION_STORE", "dynamodb://companion?region=eu-central-1"), profile=companion.PROFILE, auto_migrate=True
)
sentry_sdk.init(os.environ.get("SENTRY_DSN"))  # without one, nothing is sent
instrument(app, redact={"*": ["name"]})  # the names of users stay here
slack = Slack(os.environ.get("SLACK_URL", "https://slack.com/api/"), setting("SLACK_TOKEN", "xoxb-…"))
register(app, slack, setting("SLACK_CHANNEL", "C0123456789"))
