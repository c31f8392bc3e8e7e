"""What follows the end of a job: which task, with which options, and which facts it is told."""

import logging
from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from treadle.errors import ConfigError
from treadle.model import FollowUp, OnEnd
from treadle.model.lifecycle import FACTS, RESULT
from treadle.tasks.definition import Definition

_TOLD = (*FACTS, RESULT)
_log = logging.getLogger("treadle.tasks")


def on_end(
    task: str, wanted: OnEnd | None, known: Mapping[str, Definition], before: Sequence[str] = ()
) -> OnEnd | None:
    """What is to follow the end of a task's jobs, with the options of the tasks that follow, as far as they are known.

    ConfigError for a task that needs what it would not be told, and for a circle; `before` are the tasks that led here.
    """
    if wanted is None:
        return None
    path = (*before, task)
    return OnEnd(
        *(_follow_up(f"on_{state}", follow, known, path) for state, follow in zip(OnEnd._fields, wanted, strict=True))
    )


def _follow_up(
    option: str, wanted: FollowUp | None, known: Mapping[str, Definition], path: Sequence[str]
) -> FollowUp | None:
    if wanted is None or not wanted.task:
        return wanted
    if wanted.task in path:
        circle = " → ".join((*path, wanted.task))
        raise ConfigError(
            f"task {path[-1]!r}: {option}: {circle} is a circle, which never ends; enqueue in the handler"
        )
    task = known.get(wanted.task)
    if task is None:
        _tell_unknown(option, wanted.task, known, path[-1])
        return wanted
    alone = task.payload.single == RESULT
    if alone and option == "on_failed":
        raise ConfigError(
            f"task {path[-1]!r}: on_failed: task {wanted.task!r} takes a result, and a job that failed has none; "
            f"take some of {', '.join(FACTS)}"
        )
    if not alone and (missing := task.payload.missing(_TOLD)):
        raise ConfigError(
            f"task {path[-1]!r}: {option}: task {wanted.task!r} needs {', '.join(missing)}, which the end of a job "
            f"does not tell. It tells {', '.join(_TOLD)}: name these, or give the others a default"
        )
    options = task.options
    return wanted._replace(
        queue=options.queue,
        lane=options.lane,
        priority=options.priority,
        version=options.version,
        retry=options.retry,
        timeout=options.timeout,
        wants=task.payload.wanted(_TOLD),
        alone=alone,
        on_end=on_end(wanted.task, options.on_end, known, path),
    )


def _tell_unknown(option: str, name: str, known: Mapping[str, Definition], task: str) -> None:
    """Warn once of a task that is to follow and is not known here: it may be elsewhere, or a slip."""
    definition = known.get(task)
    if definition is None or option in definition.warned:
        return
    definition.warned.add(option)
    like = get_close_matches(name, known, 1)
    hint = f" (did you mean {like[0]!r}?)" if like else ""
    _log.warning(
        "task %r: %s names task %r, which is not known here%s; its jobs wait in queue default for a worker that has it",
        task,
        option,
        name,
        hint,
    )
