"""How much a test does: as much as shows the promise, or as seldom faults need (`python3 dev.py test --long`).

    ROUNDS = size(30, long=200)

Races, crowds, random walks and generated inputs find more the longer they go on. The usual run takes a part of each.
"""

import os

LONG = "TREADLE_TEST_LONG"


def size(usual: int, *, long: int) -> int:
    """The number for this run; asked when a test module is loaded."""
    return long if os.environ.get(LONG) else usual
