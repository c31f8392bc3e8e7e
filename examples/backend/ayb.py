"""The command line of the server: `python ayb.py start`, `python ayb.py config get jobs.enabled`."""

import argparse
import json
import logging
import sys
import tomllib

import config
import psycopg

from treadle import TreadleError


def main() -> None:
    parser = argparse.ArgumentParser(prog="ayb", description="A small backend with a job queue.")
    commands = parser.add_subparsers(dest="command", required=True)
    start = commands.add_parser("start", help="serve until Ctrl-C or SIGTERM")
    start.add_argument("--port", type=int, default=8090, help="0 takes a free one")
    start.add_argument("--prune-every", type=float, default=3600, help="seconds of the timer, while jobs are disabled")
    settings = commands.add_parser("config", help="settings of ayb.toml").add_subparsers(dest="act", required=True)
    settings.add_parser("get").add_argument("key")
    change = settings.add_parser("set")
    change.add_argument("key")
    change.add_argument("value")
    given = parser.parse_args()
    try:
        if given.command == "start":
            import server  # noqa: PLC0415 - what a server needs takes a moment

            logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
            server.start(config.load(), given.port, given.prune_every)
        elif given.act == "get":
            print(json.dumps(config.get(given.key)))
        else:
            print(f"{given.key} = {json.dumps(config.set_value(given.key, given.value))}")
    except (config.BadConfig, TreadleError, psycopg.OperationalError, tomllib.TOMLDecodeError) as error:
        sys.exit(f"ayb: {error}")


if __name__ == "__main__":
    main()
