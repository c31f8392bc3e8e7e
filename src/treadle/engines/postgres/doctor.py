"""What an operator should know about a PostgreSQL store."""

from collections.abc import Sequence

from treadle.engines.rows import Row
from treadle.engines.values import Finding

OLDEST = 150000  # as server_version_num

FACTS = """
select current_setting('server_version'), current_setting('server_version_num')::int,
    current_setting('synchronous_commit'), current_setting('fsync'), pg_is_in_recovery()
"""


def examine(facts: Row, drift: Sequence[str] | None, *, hears: bool) -> list[Finding]:
    """The findings: from FACTS, from the comparison of the schema, and whether LISTEN hears anything."""
    version, number, synchronous, fsync, standby = facts
    found = [Finding("ok", f"PostgreSQL {version}")]
    if number < OLDEST:
        found = [Finding("error", f"PostgreSQL {version} is too old; treadle needs 15 or newer")]
    if standby:
        found.append(Finding("error", "this server is a standby: name the primary, or both with host=a,b"))
    if fsync != "on" or synchronous == "off":
        found.append(Finding("warning", "fsync or synchronous_commit is off: a crash may undo acknowledged jobs"))
    else:
        found.append(Finding("ok", "fsync and synchronous_commit are on: an enqueued job survives a crash"))
    if drift is None:
        found.append(
            Finding(
                "warning",
                "schema was not compared: this role may create none beside it; `treadle migrate --check` as the role "
                "that migrates does",
            )
        )
    elif drift:
        found.append(Finding("error", "schema: " + "; ".join(drift)))
    else:
        found.append(Finding("ok", "schema is up to date"))
    if hears:
        found.append(Finding("ok", "LISTEN works: workers start jobs at once; polling alone would be enough"))
    else:
        found.append(
            Finding(
                "warning",
                "LISTEN hears nothing (a pooler in transaction mode?): workers find jobs by polling, which is always "
                "enough; to start them at once set listen_url to a direct connection",
            )
        )
    return found
