"""The server: `python -m chatServer.main` brings the database up to date, then serves until Ctrl-C or SIGTERM."""

import argparse
import asyncio
import logging
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
import uvicorn
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError

from chatServer.config import BadSettings, get_settings
from chatServer.database.connection import get_database_manager
from chatServer.database.migrate import migrate
from chatServer.routers import external_api_router
from chatServer.services.background_tasks import BackgroundTaskService
from chatServer.services.job_handlers import (
    handle_agent_invocation,
    handle_email_processing,
    handle_reminder_delivery,
)
from chatServer.services.job_runner_service import JobRunnerService
from chatServer.services.job_service import JobService
from treadle import TreadleError

log = logging.getLogger("chat")


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    settings, database = get_settings(), get_database_manager()
    pool = await database.open(settings.database_url)
    job_service = JobService(pool)
    runner = JobRunnerService(job_service, poll=settings.runner_poll_seconds, expiry=settings.expiry_seconds)
    runner.register_handler("email_processing", handle_email_processing)
    runner.register_handler("agent_invocation", handle_agent_invocation)
    runner.register_handler("reminder_delivery", handle_reminder_delivery)
    background = BackgroundTaskService(pool, job_service, runner, settings)
    background.start_background_tasks()
    try:
        yield
    finally:
        await background.stop_background_tasks()
        await database.close()
        await job_service.close()
    log.info("stopped")


app = FastAPI(title="Chat server", lifespan=lifespan)
app.include_router(external_api_router.router)
app.exception_handler(RequestValidationError)(external_api_router.refuse)


def main() -> None:
    parser = argparse.ArgumentParser(prog="chatServer", description="A chat server with a job queue.")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one")
    serve(parser.parse_args().port)


def serve(port: int) -> None:
    """Bring the database up to date, then serve until Ctrl-C or SIGTERM."""
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it would log the address of each request
    try:
        migrate(get_settings().database_url)
        listener = socket.create_server(("127.0.0.1", port))
    except (BadSettings, TreadleError, psycopg.Error, OSError) as error:
        sys.exit(f"chatServer: {error}")
    log.info("serving http://127.0.0.1:%d", listener.getsockname()[1])
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=10))
    asyncio.run(server.serve(sockets=[listener]))


if __name__ == "__main__":
    main()
