"""Names that nothing was found under, and those that are there and resemble them."""

from difflib import get_close_matches

from treadle.app.treadle import Treadle
from treadle.cli.discovery import Target
from treadle.errors import NotPossible


def near_names(store: Target, *, task: object = None, queue: object = None) -> str:
    """Which task or queue may be meant, if the store knows none of this name; empty if it does, or none is near."""
    if task is None and queue is None:
        return ""
    try:
        found = store.status()
    except NotPossible:  # a server's token that is bound to queues is not told of all of them
        return ""
    queues = {group.queue for group in found.queues} | {name for worker in found.workers for name in worker.queues}
    tasks = {group.task for group in found.tasks} | {name for worker in found.workers for name in worker.task_names}
    if isinstance(store, Treadle):
        tasks |= {*store.tasks}
        queues |= {task.options.queue for task in store.tasks.values()}
    hints = (_near("task", task, tasks), _near("queue", queue, queues))
    return "; ".join(filter(None, hints))


def _near(kind: str, name: object, known: set[str]) -> str:
    if name is None or name in known:
        return ""
    words = {word.lower(): word for word in sorted(known)}
    near = [words[word] for word in get_close_matches(str(name)[:200].lower(), words, 2)]
    return f"there is no {kind} {name!r} here, did you mean {' or '.join(near)}?" if near else ""
