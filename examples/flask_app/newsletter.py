"""A newsletter: an address and the job that welcomes its owner are stored in one transaction of SQLite."""

import sqlite3
from typing import Any

from flask import Flask, abort, current_app, g, request

from treadle.integrations.flask import FlaskTreadle, JobView, add_error_handlers

jobs = FlaskTreadle()  # it gets its settings in create_app, as other extensions do


def create_app() -> Flask:
    app = Flask(__name__)
    app.config.from_mapping(DATABASE="newsletter.db", SENDER="news@example.org", MOST_READERS=1000)
    app.config.from_prefixed_env()  # FLASK_MOST_READERS=1
    app.config.setdefault("TREADLE_URL", f"sqlite:///{app.config['DATABASE']}")  # the jobs are in the same file
    jobs.init_app(app)
    add_error_handlers(app)  # a job that is not there: 404; a wrong value: 422; a store that does not answer: 503
    app.teardown_appcontext(close_db)
    app.post("/readers")(add_reader)
    app.get("/jobs/<job_id>")(show_job)
    return app


def get_db() -> sqlite3.Connection:
    """The connection of this request, or of this job: handlers run inside the app context too."""
    if "db" not in g:
        g.db = sqlite3.connect(current_app.config["DATABASE"])
        g.db.execute("create table if not exists readers (id integer primary key, address text unique)")
    connection: sqlite3.Connection = g.db
    return connection


def close_db(_: BaseException | None) -> None:
    if "db" in g:
        g.pop("db").close()


@jobs.task
def welcome(reader: int) -> str:
    row = get_db().execute("select address from readers where id = ?", [reader]).fetchone()
    return f"mail from {current_app.config['SENDER']} to {row[0]}"


def add_reader() -> tuple[dict[str, Any], int]:
    with get_db() as db:  # an exception rolls everything back
        db.execute("begin immediate")
        insert = "insert into readers (address) values (?) returning id"
        [reader] = db.execute(insert, [request.get_json()["address"]]).fetchone()
        job = welcome.using(tx=db).enqueue(reader)
        if reader > current_app.config["MOST_READERS"]:
            abort(409, "the list is full")  # neither the reader nor the job stays
    return {"reader": reader, "job": job.id}, 201


def show_job(job_id: str) -> dict[str, Any]:
    return JobView.of(jobs.get(job_id)).model_dump(mode="json", include={"state", "result", "error"})
