"""The queue for treadle's command line: `treadle jobs list --app admin:app`."""

import cleanups
from config import load
from server import service

app = service(load())
cleanups.register(app)
