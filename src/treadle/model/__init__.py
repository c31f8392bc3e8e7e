"""Words and rules: no I/O, no thread. The nouns can be imported from here.

Rules are given the time and the noise. Only new ids, `SystemClock` and `Backoff.spread` read a clock or draw a number.
"""

from treadle.model.alike import AlikeJobs
from treadle.model.change import Change, Event, EventKind, Fence, Write
from treadle.model.checks import (
    KEY_CAP,
    MESSAGE_CAP,
    NAME_CAP,
    PAYLOAD_CAP,
    PRIORITIES,
    TRACEBACK_CAP,
    check_name,
    check_priority,
    check_retry,
    check_text,
)
from treadle.model.job import UUID, FollowUp, Job, JobError, OnEnd, Progress, checked, new_id, new_ids
from treadle.model.keys import Scope
from treadle.model.retry import ATTEMPTS, Retry
from treadle.model.state import Reason, State
from treadle.model.text import check_finite, check_json, clean, holds_nul, json_text

__all__ = [
    "ATTEMPTS",
    "KEY_CAP",
    "MESSAGE_CAP",
    "NAME_CAP",
    "PAYLOAD_CAP",
    "PRIORITIES",
    "TRACEBACK_CAP",
    "UUID",
    "AlikeJobs",
    "Change",
    "Event",
    "EventKind",
    "Fence",
    "FollowUp",
    "Job",
    "JobError",
    "OnEnd",
    "Progress",
    "Reason",
    "Retry",
    "Scope",
    "State",
    "Write",
    "check_finite",
    "check_json",
    "check_name",
    "check_priority",
    "check_retry",
    "check_text",
    "checked",
    "clean",
    "holds_nul",
    "json_text",
    "new_id",
    "new_ids",
]
