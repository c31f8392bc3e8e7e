"""Acts on many jobs: counted by the server, confirmed, done."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from treadle.app.bulk import FIRST_IDS, MOST_PROBLEMS, BulkReport
from treadle.app.queries import LARGEST_PAGE
from treadle.client import values
from treadle.client.transport import Transport
from treadle.client.values import read
from treadle.client.words import given

Progress = Callable[[BulkReport], None]


class RemoteBulk:
    """Retry, cancel and delete many; which ones, as in `Treadle.retry_many`.

    The server acts on all that fit in one request. `progress` hears of it when that is answered, and of ids after each
    500 of them.
    """

    def __init__(self, http: Transport) -> None:
        self._http = http
        self._confirms: dict[str, str] = {}  # of what was counted and not done yet, by what was meant

    def retry_many(self, *, keep_attempts: bool = False, **options: Any) -> BulkReport:
        """Run failed jobs again, or with `state="cancelled"` cancelled ones."""
        return self._act_on_many({"action": "retry", "keep_attempts": keep_attempts}, **options)

    def cancel_many(self, **options: Any) -> BulkReport:
        """Cancel jobs that wait, and ask those that run to stop."""
        return self._act_on_many({"action": "cancel"}, **options)

    def delete_many(self, **options: Any) -> BulkReport:
        """Delete jobs that wait or have ended."""
        return self._act_on_many({"action": "delete"}, **options)

    def _act_on_many(
        self,
        act: Mapping[str, Any],
        *,
        dry_run: bool = False,
        actor: str = "",
        reason: str = "",
        progress: Progress | None = None,
        **which: Any,
    ) -> BulkReport:
        if not isinstance(which.get("ids"), str | None):
            which["ids"] = list(which["ids"])
        total = BulkReport()
        for part in _parts(given(which)):
            body = {**act, "filter": part, "reason": reason}
            total = _plus(total, self._done(body, dry_run))
            if progress is not None:
                progress(total)
        return total

    def _done(self, body: dict[str, Any], dry_run: bool) -> BulkReport:
        """Counted; and if it is meant, done with the confirmation of this very count, or of one that came before."""
        key = json.dumps(body)
        if dry_run or key not in self._confirms:
            counted = self._http.post_long("/jobs/bulk", body)
            self._confirms[key] = read(lambda: str(counted["confirm"]))
            if dry_run:
                return read(lambda: values.report_from(counted))
        answer = self._http.post_long("/jobs/bulk", {**body, "confirm": self._confirms.pop(key)})
        return read(lambda: values.report_from(answer))


def _parts(which: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The filter, or so many ids at once as a request may name."""
    ids = which.get("ids")
    if ids is None or len(ids) <= LARGEST_PAGE:
        yield which
        return
    for start in range(0, len(ids), LARGEST_PAGE):
        yield {**which, "ids": ids[start : start + LARGEST_PAGE]}


def _plus(one: BulkReport, other: BulkReport) -> BulkReport:
    return BulkReport(
        one.found + other.found,
        one.done + other.done,
        one.not_possible + other.not_possible,
        one.asked + other.asked,
        [*one.first, *other.first][:FIRST_IDS],
        [*one.problems, *other.problems][:MOST_PROBLEMS],
        one.exact and other.exact,
    )
