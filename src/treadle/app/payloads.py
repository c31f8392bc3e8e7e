"""Payloads that an operator looks through or puts in place of others."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from treadle.engines.contract import JobStore, PayloadSearch
from treadle.errors import InvalidJob, UnknownTask
from treadle.model import json_text
from treadle.model.edit import NewPayload

if TYPE_CHECKING:
    from treadle.tasks.definition import Definition

LONGEST_TEXT = 200  # characters that are looked for


def encoded(known: "Mapping[str, Definition]", task: str, payload: Any) -> NewPayload:
    """A payload given as data, checked against its task; unchecked only where no task is known at all."""
    if not known:
        return NewPayload(json_text(payload, "payload"))
    definition = known.get(task)
    if definition is None:
        raise UnknownTask(task, known)
    return NewPayload(definition.payload.encode_value(payload), definition.options.version)


def check_search(engine: JobStore, text: str) -> str:
    """The text that is looked for in payloads; InvalidJob where the store would read them one by one."""
    if not isinstance(text, str) or not 1 <= len(text) <= LONGEST_TEXT:
        raise InvalidJob("text", f"{text!r:.100} must be a text of 1 to {LONGEST_TEXT} characters")
    if not isinstance(engine, PayloadSearch):
        raise InvalidJob(
            "text",
            "this store has no search in payloads, because it would read every job; the filters that work: state, "
            "task, queue, tenant, lane, key, error, fingerprint, since, before",
        )
    return text
